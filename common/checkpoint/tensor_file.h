#pragma once
// A file of somebody else's that holds named tensors: safetensors (safetensors.h) or GGUF (gguf.h).
//
// The head of a file is read and checked as a whole when it is opened; the elements are read by pread where and when
// they are wanted, never through a mapped file.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/base/shape.h"
#include "common/checkpoint/encoding.h"

namespace tandem::checkpoint {

struct StoredTensor {
  std::string name;
  std::string type;                  // as the file calls it: "BF16", "Q4_K", "I64"
  std::optional<Encoding> encoding;  // nothing for a type that weights do not have
  base::Shape shape;                 // row-major: the last extent is that of a row
  std::int64_t offset = 0;           // in the file
  std::int64_t bytes = 0;
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // By their places in the file. No two overlap, and all lie inside the file.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(const std::string& name) const;
  // Bytes of the file. Kind badData when it ends before: somebody has cut it since it was opened.
  void read(std::int64_t offset, std::span<std::byte> bytes) const;

 protected:
  explicit TensorFile(const std::filesystem::path& path);
  [[noreturn]] void fail(const std::string& what) const;
  std::int64_t size() const { return size_; }
  // Sorts the tensors by place, and checks that none overlaps another, has another's name, or leaves the file.
  void place(std::vector<StoredTensor> tensors);

 private:
  std::filesystem::path path_;
  base::File file_;
  std::int64_t size_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t> byName_;
};

// The number of elements of these extents; nothing when it, or the bytes of as many float64, leave 63 bits, when an
// extent is negative or when there are more extents than a Shape holds.
std::optional<base::Shape> checkedShape(std::span<const std::int64_t> extents);

}  // namespace tandem::checkpoint
