#pragma once
// The files of one step: writing and checking them.

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/detail/layout.h"

namespace tandem::checkpoint::detail {

// What the step loop tells the thread that writes.
struct WriteOrders {
  std::atomic<bool> cancelled = false;
  std::atomic<bool> hurried = false;  // somebody waits for the end
};

// Writes a shard into its open, empty file, durably. The bytes begin at a page of the memory. Unless hurried it rests
// most of the time: a disk takes time from the cores too (interrupts, copies, an emulator), and nothing waits for the
// end. Ends early, with an Error, once cancelled.
void writeShard(const base::File& file, std::span<const std::byte> bytes, const WriteOrders& orders);

// Writes checkpoint.h5 and the checksums into the folder, where the shards lie already, durably.
void writeIndex(const std::filesystem::path& folder, const Metadata& metadata, const Layout& layout);

struct Index {
  Metadata metadata;
  Layout layout;
};

// Reads checkpoint.h5 and checks it against its checksum. Throws Error when it is not whole.
Index readIndex(const std::filesystem::path& folder);

// Throws Error when the shard is missing, of another size, or does not match its hash. Ends early, without a finding,
// once `cancelled`.
void verifyShard(const std::filesystem::path& folder, const Shard& shard, const std::atomic<bool>& cancelled = false);

// Verifies shards as they are needed, each on a thread of its own that also runs ahead of the need by one.
class ShardVerifier {
 public:
  ShardVerifier(std::filesystem::path folder, std::span<const Shard> shards);
  ~ShardVerifier();  // gives up what it runs ahead with
  ShardVerifier(const ShardVerifier&) = delete;
  ShardVerifier& operator=(const ShardVerifier&) = delete;

  // Returns once the shard is known to be whole; throws what verifyShard throws. One thread at a time.
  void await(int shard);

 private:
  void start(std::size_t shard);

  std::filesystem::path folder_;
  std::span<const Shard> shards_;
  std::atomic<bool> cancelled_ = false;
  std::vector<std::shared_future<void>> findings_;  // by shard; invalid: not begun
};

}  // namespace tandem::checkpoint::detail
