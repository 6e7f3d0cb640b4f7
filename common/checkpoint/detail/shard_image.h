#pragma once
// A shard as it will lie on the disk, in memory that is kept from save to save.
//
// HDF5 lays the file out and gives its metadata; the elements are copied straight to their final places. So there is
// one copy, and writing the file is one sequential run over one buffer. Its hash is computed by another thread right
// behind the copy, while the bytes are still in a cache: later it would take time from the step loop.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"

namespace tandem::hdf5 {
class File;
}

namespace tandem::checkpoint::detail {

// Where the local pieces of a tensor lie in a shard, one behind the other.
struct Placement {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  const LocalTensor* tensor = nullptr;
};

// Lays out a shard in a new file: a dataset under each tensor's name, with room for its local pieces. Ascending by
// offset; a tensor without local elements has no place.
std::vector<Placement> layOutShard(hdf5::File& file, std::span<const LocalTensor> tensors);

class ShardImage {
 public:
  ShardImage() = default;
  ~ShardImage();
  ShardImage(const ShardImage&) = delete;
  ShardImage& operator=(const ShardImage&) = delete;

  // Each tensor's local pieces become one dataset under its name, one after the other. Without `copy` they lie in the
  // host's memory.
  void build(const std::string& fileName, std::span<const LocalTensor> tensors, const CopyToHost& copy);
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& hash() const { return hash_; }

 private:
  void reserve(std::size_t size);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::string hash_;
};

}  // namespace tandem::checkpoint::detail
