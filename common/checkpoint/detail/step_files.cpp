#include "common/checkpoint/detail/step_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/checkpoint/detail/folders.h"
#include "common/hdf5/hdf5.h"

namespace tandem::checkpoint::detail {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;

constexpr const char* formatName = "tandem-checkpoint";
constexpr std::int64_t formatVersion = 1;

void writeWhole(const fs::path& path, std::span<const std::byte> bytes) {
  base::File file = base::File::create(path);
  file.writeAt(0, bytes);
  file.sync();
  file.close();
}

using Clock = std::chrono::steady_clock;

// After work that took so long, several times as long; so steps lose a tenth of what they would lose otherwise.
void rest(Clock::duration work, const WriteOrders& orders) {
  constexpr int restsPerWork = 9;
  const Clock::time_point end = Clock::now() + restsPerWork * work;
  while (Clock::now() < end && !orders.hurried && !orders.cancelled) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Writes past the system's page cache where the file system can: that takes a fifth of the processor time, which the
// step loop needs, and leaves the data set in the cache. Needs blocks and memory that begin at pages.
class DirectWriter {
 public:
  explicit DirectWriter(const base::File& file) : file_(file) { setDirect(true); }
  ~DirectWriter() { setDirect(false); }
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  void write(std::int64_t offset, std::span<const std::byte> block) {
    constexpr std::size_t page = 4096;
    const auto pages = block.first(block.size() / page * page);
    if (!direct_ || ::pwrite(file_.descriptor(), pages.data(), pages.size(), offset) != std::ssize(pages)) {
      setDirect(false);  // whatever the reason was: the plain way works or tells it
      file_.writeAt(offset, block);
      return;
    }
    if (pages.size() == block.size()) return;
    setDirect(false);
    file_.writeAt(offset + std::ssize(pages), block.subspan(pages.size()));
  }

 private:
  void setDirect(bool wanted) {
    const int flags = ::fcntl(file_.descriptor(), F_GETFL);
    direct_ = ::fcntl(file_.descriptor(), F_SETFL, wanted ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && wanted;
  }

  const base::File& file_;
  bool direct_ = false;
};

// Each tensor as one virtual dataset over its pieces.
void createTensor(hdf5::File& file, const PlacedTensor& tensor, const std::vector<Shard>& shards) {
  std::vector<std::int64_t> sourceCounts(shards.size());
  for (const PlacedPiece& piece : tensor.pieces)
    sourceCounts[static_cast<std::size_t>(piece.shard)] += piece.count * piece.repeats;
  std::vector<hdf5::VirtualPiece> pieces;
  for (const PlacedPiece& piece : tensor.pieces) {
    const auto shard = static_cast<std::size_t>(piece.shard);
    pieces.push_back({shards[shard].file, "/" + tensor.name, sourceCounts[shard], piece.sourceBegin, piece.targetBegin,
                      piece.count, piece.repeats, piece.stride});
  }
  file.createVirtual(tensor.name, tensor.type, tensor.shape, pieces);
}

std::vector<std::byte> indexImage(const Metadata& metadata, const Layout& layout) {
  hdf5::File file = hdf5::File::create(indexName, hdf5::File::Storage::memory);
  file.setAttribute("/", "format", formatName);
  file.setAttribute("/", "version", formatVersion);
  file.setAttribute("/", "step", metadata.step);
  file.writeText("tokenizer", metadata.tokenizer);
  file.writeText("configuration", metadata.configuration);
  file.writeText("options", metadata.options);
  file.writeText("progress", metadata.progress);
  if (!metadata.companions.empty()) file.writeText("companions", metadata.companions);
  file.writeText("layout", toText(layout));
  for (const PlacedTensor& tensor : layout.tensors) createTensor(file, tensor, layout.shards);
  return file.image();
}

// A line a file: hash, two spaces, name.
std::string storedHash(const fs::path& folder, const std::string& name) {
  std::istringstream lines(base::readFile(folder / checksumsName));
  for (std::string hash, file; lines >> hash >> file;) {
    if (file == name) return hash;
  }
  throw Error(ErrorKind::badData, (folder / checksumsName).string() + " has no checksum of " + name);
}

}  // namespace

void writeShard(const base::File& file, std::span<const std::byte> bytes, const WriteOrders& orders) {
  constexpr std::size_t blockSize = std::size_t{16} << 20;
  DirectWriter writer(file);
  for (std::size_t begin = 0; begin < bytes.size() && !orders.cancelled; begin += blockSize) {
    const Clock::time_point start = Clock::now();
    writer.write(static_cast<std::int64_t>(begin), bytes.subspan(begin, std::min(blockSize, bytes.size() - begin)));
    if (begin + blockSize < bytes.size()) rest(Clock::now() - start, orders);
  }
  if (orders.cancelled) throw Error(ErrorKind::file, "the checkpoint was given up");
  file.sync();
}

void writeIndex(const fs::path& folder, const Metadata& metadata, const Layout& layout) {
  const std::vector<std::byte> image = indexImage(metadata, layout);
  writeWhole(folder / indexName, image);
  base::Hasher hasher;
  hasher.update(image);
  std::string checksums = hasher.hex() + "  " + indexName + "\n";
  for (const Shard& shard : layout.shards) {
    std::error_code failure;
    const auto size = fs::file_size(folder / shard.file, failure);
    if (failure || static_cast<std::int64_t>(size) != shard.bytes) {
      throw Error(ErrorKind::file, "the shard " + (folder / shard.file).string() +
                                       " is not what was written: somebody changed or removed it");
    }
    checksums += shard.hash + "  " + shard.file + "\n";
  }
  writeWhole(folder / checksumsName, std::as_bytes(std::span(checksums)));
  base::syncFolder(folder);
}

Index readIndex(const fs::path& folder) {
  const fs::path path = folder / indexName;
  if (storedHash(folder, indexName) != base::hashFile(path)) {
    throw Error(ErrorKind::badData, path.string() + " does not match its checksum: it is damaged");
  }
  const hdf5::File file = hdf5::File::open(path);
  if (file.textAttribute("/", "format") != formatName) {
    throw Error(ErrorKind::badData, path.string() + " is no checkpoint: its attribute format is not " + formatName);
  }
  const std::int64_t version = file.integerAttribute("/", "version").value_or(0);
  if (version != formatVersion) {
    throw Error(ErrorKind::badData, path.string() + " has version " + std::to_string(version) +
                                        " of the format; this program reads version " + std::to_string(formatVersion));
  }
  Index index;
  index.metadata.step = file.integerAttribute("/", "step").value_or(0);
  index.metadata.tokenizer = file.readText("tokenizer");
  index.metadata.configuration = file.readText("configuration");
  index.metadata.options = file.readText("options");
  index.metadata.progress = file.readText("progress");
  if (file.has("companions")) index.metadata.companions = file.readText("companions");
  index.layout = parseLayout(file.readText("layout"));
  return index;
}

void verifyShard(const fs::path& folder, const Shard& shard, const std::atomic<bool>& cancelled) {
  const fs::path path = folder / shard.file;
  const base::File file = base::File::openForReading(path);
  const std::int64_t size = file.size();
  if (size != shard.bytes) {
    throw Error(ErrorKind::badData, path.string() + " has " + std::to_string(size) + " bytes instead of " +
                                        std::to_string(shard.bytes) + ": it is truncated or damaged");
  }
  base::Hasher hasher;
  std::vector<std::byte> block(std::size_t{1} << 20);  // stays in a core's cache until it is hashed
  for (std::int64_t offset = 0, got = 1; got > 0; offset += got) {
    if (cancelled) return;
    got = file.readAt(offset, block);
    hasher.update(std::span(block).first(static_cast<std::size_t>(got)));
  }
  if (hasher.hex() != shard.hash) {
    throw Error(ErrorKind::badData, path.string() + " does not match its checksum: it is damaged");
  }
}

ShardVerifier::ShardVerifier(fs::path folder, std::span<const Shard> shards)
    : folder_(std::move(folder)), shards_(shards), findings_(shards.size()) {}

ShardVerifier::~ShardVerifier() { cancelled_ = true; }  // the futures wait for their threads

void ShardVerifier::start(std::size_t shard) {
  if (shard >= shards_.size() || findings_[shard].valid()) return;
  findings_[shard] =
      std::async(std::launch::async, [this, shard] { verifyShard(folder_, shards_[shard], cancelled_); }).share();
}

void ShardVerifier::await(int shard) {
  const auto number = static_cast<std::size_t>(shard);
  start(number);
  start(number + 1);
  findings_[number].get();
}

}  // namespace tandem::checkpoint::detail
