#include "common/checkpoint/detail/shard_image.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/base/units.h"
#include "common/hdf5/hdf5.h"

namespace tandem::checkpoint::detail {
namespace {

std::int64_t localCount(const LocalTensor& tensor) {
  std::int64_t count = 0;
  for (const Piece& piece : tensor.pieces) count += piece.elements();
  return count;
}

// Hashes memory from its beginning on a thread of its own, as far as it is filled.
class HashBehind {
 public:
  explicit HashBehind(const std::byte* data) : thread_([this, data] { follow(data); }) {}
  ~HashBehind() {
    if (thread_.joinable()) finish();
  }
  HashBehind(const HashBehind&) = delete;
  HashBehind& operator=(const HashBehind&) = delete;

  // The first `bytes` are filled, and will not change.
  void fillTo(std::int64_t bytes) {
    filled_ = bytes;
    filled_.notify_one();
  }
  // Of all that was filled.
  std::string finish() {
    filled_ = filled_ | endMark;
    filled_.notify_one();
    thread_.join();
    return hasher_.hex();
  }

 private:
  static constexpr std::int64_t endMark = std::int64_t{1} << 62;

  void follow(const std::byte* data) {
    std::int64_t hashed = 0;
    for (;;) {
      const std::int64_t seen = filled_, filled = seen & ~endMark;
      hasher_.update({data + hashed, static_cast<std::size_t>(filled - hashed)});
      hashed = filled;
      if (seen & endMark) return;
      filled_.wait(seen);
    }
  }

  std::atomic<std::int64_t> filled_ = 0;
  base::Hasher hasher_;
  std::thread thread_;
};

void copyPieces(const LocalTensor& tensor, std::byte* target, const CopyToHost& copy) {
  for (const Piece& piece : tensor.pieces) {
    const std::int64_t bytes = piece.elements() * base::byteSize(tensor.type);
    if (bytes == 0) continue;
    if (copy) {
      copy(target, piece.data, bytes);
    } else {
      std::memcpy(target, piece.data, static_cast<std::size_t>(bytes));
    }
    target += bytes;
  }
}

}  // namespace

std::vector<Placement> layOutShard(hdf5::File& file, std::span<const LocalTensor> tensors) {
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

void ShardImage::build(const std::string& fileName, std::span<const LocalTensor> tensors, const CopyToHost& copy) {
  hdf5::File file = hdf5::File::create(fileName, hdf5::File::Storage::memory);
  const std::vector<Placement> placements = layOutShard(file, tensors);
  reserve(static_cast<std::size_t>(file.imageSize()));
  const auto fillGap = [&](std::int64_t begin, std::int64_t end) {
    file.copyImage(begin, {data_ + begin, static_cast<std::size_t>(end - begin)});
  };
  HashBehind hash(data_);
  std::int64_t end = 0;
  for (const Placement& placement : placements) {
    fillGap(end, placement.offset);
    copyPieces(*placement.tensor, data_ + placement.offset, copy);
    end = placement.offset + placement.bytes;
    hash.fillTo(end);
  }
  fillGap(end, static_cast<std::int64_t>(size_));
  hash.fillTo(static_cast<std::int64_t>(size_));
  hash_ = hash.finish();
}

}  // namespace tandem::checkpoint::detail
