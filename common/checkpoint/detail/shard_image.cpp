#include "common/checkpoint/detail/shard_image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "common/base/error.h"
#include "common/base/units.h"
#include "common/hdf5/hdf5.h"

namespace tandem::checkpoint::detail {
namespace {

struct Placement {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  const LocalTensor* tensor = nullptr;
};

std::int64_t localCount(const LocalTensor& tensor) {
  std::int64_t count = 0;
  for (const Piece& piece : tensor.pieces) count += piece.count;
  return count;
}

std::vector<Placement> layOut(hdf5::File& file, std::span<const LocalTensor> tensors) {
  file.setAttribute("/", "format", "tandem-checkpoint-shard");
  file.setAttribute("/", "version", 1);
  std::vector<Placement> placements;
  for (const LocalTensor& tensor : tensors) {
    const std::int64_t count = localCount(tensor);
    if (count == 0) continue;
    const std::int64_t offset = file.createReserved(tensor.name, tensor.type, {count}).offset();
    placements.push_back({offset, count * base::byteSize(tensor.type), &tensor});
  }
  std::sort(placements.begin(), placements.end(),
            [](const Placement& a, const Placement& b) { return a.offset < b.offset; });
  return placements;
}

void copyPieces(const LocalTensor& tensor, std::byte* target) {
  for (const Piece& piece : tensor.pieces) {
    const auto bytes = static_cast<std::size_t>(piece.count * base::byteSize(tensor.type));
    if (bytes > 0) std::memcpy(target, piece.data, bytes);
    target += bytes;
  }
}

}  // namespace

ShardImage::~ShardImage() {
  if (data_ != nullptr) ::munmap(data_, capacity_);
}

void ShardImage::reserve(std::size_t size) {
  if (size > capacity_) {
    if (data_ != nullptr) ::munmap(data_, capacity_);
    data_ = nullptr;
    capacity_ = 0;
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw base::Error(base::ErrorKind::device, "cannot get " + base::formatBytes(static_cast<std::int64_t>(size)) +
                                                     " of memory for the copy that a checkpoint is written from: " +
                                                     base::systemErrorText(errno));
    }
    data_ = static_cast<std::byte*>(memory);
    capacity_ = size;
    ::madvise(data_, capacity_, MADV_HUGEPAGE);  // fewer page faults during the first copy; a hint only
  }
  size_ = size;
}

void ShardImage::build(const std::string& fileName, std::span<const LocalTensor> tensors) {
  hdf5::File file = hdf5::File::create(fileName, hdf5::File::Storage::memory);
  const std::vector<Placement> placements = layOut(file, tensors);
  reserve(static_cast<std::size_t>(file.imageSize()));
  const auto fillGap = [&](std::int64_t begin, std::int64_t end) {
    file.copyImage(begin, {data_ + begin, static_cast<std::size_t>(end - begin)});
  };
  std::int64_t end = 0;
  for (const Placement& placement : placements) {
    fillGap(end, placement.offset);
    copyPieces(*placement.tensor, data_ + placement.offset);
    end = placement.offset + placement.bytes;
  }
  fillGap(end, static_cast<std::int64_t>(size_));
}

}  // namespace tandem::checkpoint::detail
