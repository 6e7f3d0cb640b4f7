#include "common/checkpoint/step_writer.h"

#include <algorithm>
#include <optional>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/hash.h"
#include "common/checkpoint/detail/folders.h"
#include "common/checkpoint/detail/layout.h"
#include "common/checkpoint/detail/shard_image.h"
#include "common/checkpoint/detail/step_files.h"
#include "common/checkpoint/run_lock.h"
#include "common/hdf5/hdf5.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;

constexpr std::int64_t blockBytes = 4 << 20;
constexpr std::size_t hashDigits = 32;

// What each shard holds: the bytes of all tensors, one behind the other, cut into pieces of equal size.
std::vector<std::vector<LocalTensor>> divide(std::span<const StepTensor> tensors, int shards) {
  std::int64_t total = 0;
  for (const StepTensor& tensor : tensors) total += tensor.shape.count() * base::byteSize(tensor.type);
  std::vector<std::vector<LocalTensor>> divided(static_cast<std::size_t>(shards));
  std::int64_t before = 0;
  for (const StepTensor& tensor : tensors) {
    const std::int64_t count = tensor.shape.count(), size = base::byteSize(tensor.type);
    for (int shard = 0; shard < shards; ++shard) {
      // An element belongs where its first byte falls.
      const auto elementAt = [&](int boundary) {
        const std::int64_t byte = total * boundary / shards - before;
        return std::clamp<std::int64_t>((byte + size - 1) / size, 0, count);
      };
      const std::int64_t begin = elementAt(shard), end = elementAt(shard + 1);
      LocalTensor local{tensor.name, tensor.type, tensor.shape, {}};
      if (begin < end) local.pieces.push_back({begin, end - begin, nullptr});
      divided[static_cast<std::size_t>(shard)].push_back(std::move(local));
    }
    before += count * size;
  }
  return divided;
}

// Writes one shard into its file, durably; gives its hash.
std::string writeShardFile(const fs::path& path, const std::vector<LocalTensor>& pieces,
                           std::span<const StepTensor> tensors, const StepElements& elements) {
  hdf5::File image = hdf5::File::create(path.filename(), hdf5::File::Storage::memory);
  const std::vector<detail::Placement> placements = detail::layOutShard(image, pieces);
  const std::int64_t size = image.imageSize();
  base::File file = base::File::create(path);
  base::Hasher hash;
  std::vector<std::byte> block(static_cast<std::size_t>(blockBytes));
  std::int64_t end = 0;
  const auto put = [&](std::int64_t bytes) {
    const std::span<const std::byte> filled(block.data(), static_cast<std::size_t>(bytes));
    file.writeAt(end, filled);
    file.startWriting(end, bytes);
    hash.update(filled);
    end += bytes;
  };
  const auto fillGap = [&](std::int64_t until) {
    while (end < until) {
      const std::int64_t bytes = std::min(blockBytes, until - end);
      image.copyImage(end, {block.data(), static_cast<std::size_t>(bytes)});
      put(bytes);
    }
  };
  for (const detail::Placement& placement : placements) {
    fillGap(placement.offset);
    const auto number = static_cast<std::size_t>(placement.tensor - pieces.data());
    const Piece& piece = placement.tensor->pieces.front();
    const std::int64_t elementBytes = base::byteSize(tensors[number].type), most = blockBytes / elementBytes;
    for (std::int64_t done = 0; done < piece.count; done += most) {
      const std::int64_t count = std::min(most, piece.count - done);
      elements(number, piece.begin + done, count, block.data());
      put(count * elementBytes);
    }
  }
  fillGap(size);
  file.sync();
  file.close();
  return hash.hex();
}

void demandEmpty(const fs::path& run) {
  if (detail::stepsOf(run).empty()) return;
  throw Error(ErrorKind::usage,
              "the folder " + run.string() + " has checkpoints already: choose another --output, or " + "remove it");
}

}  // namespace

void writeStep(comm::Communicator& communicator, const fs::path& run, const Metadata& metadata,
               std::span<const StepTensor> tensors, const StepElements& elements, int shards) {
  const bool isRoot = communicator.rank() == 0;
  std::optional<RunLock> lock;
  comm::agreeOn(communicator, [&] {
    if (!isRoot) return;
    demandEmpty(run);
    base::createFolders(detail::stepsFolder(run));
    base::syncFolder(run);
    lock.emplace(run);
    detail::removeLeftovers(run);
    detail::makePartial(run, metadata.step);
  });
  const fs::path partial = detail::partialFolder(run, metadata.step);
  const std::vector<std::vector<LocalTensor>> divided = divide(tensors, shards);
  try {
    std::string written;  // "hash\n" of each shard of this rank
    comm::agreeOn(communicator, [&] {
      for (int shard = communicator.rank(); shard < shards; shard += communicator.size()) {
        written += writeShardFile(partial / detail::shardName(shard, shards), divided[static_cast<std::size_t>(shard)],
                                  tensors, elements) +
                   "\n";
      }
    });
    const std::vector<std::string> hashes = comm::allGatherTexts(communicator, written);
    comm::agreeOn(communicator, [&] {
      if (!isRoot) return;
      std::vector<std::string> descriptions;
      detail::Layout layout;
      for (int shard = 0; shard < shards; ++shard) {
        const std::string name = detail::shardName(shard, shards);
        const std::string& ofRank = hashes[static_cast<std::size_t>(shard % communicator.size())];
        const auto place = static_cast<std::size_t>(shard / communicator.size()) * (hashDigits + 1);
        layout.shards.push_back(
            {name, base::File::openForReading(partial / name).size(), ofRank.substr(place, hashDigits)});
        descriptions.push_back(detail::describe(divided[static_cast<std::size_t>(shard)]));
      }
      layout.tensors = detail::merge(descriptions);
      detail::writeIndex(partial, metadata, layout);
      detail::publish(run, metadata.step);
    });
  } catch (...) {
    if (isRoot) detail::removePartial(run, metadata.step);
    throw;
  }
}

void writeModel(comm::Communicator& communicator, const fs::path& run, const ModelSource& model, int shards) {
  std::vector<StepTensor> tensors;
  for (const StoredParameter& each : model.parameters())
    tensors.push_back({"model/" + each.name, each.type, each.shape});
  const auto elements = [&](std::size_t tensor, std::int64_t begin, std::int64_t count, void* target) {
    const StoredParameter& parameter = model.parameters()[tensor];
    model.read(parameter, begin, count, parameter.type, target);
  };
  writeStep(communicator, run, model.metadata(), tensors, elements, shards);
}

void reshard(comm::Communicator& communicator, const fs::path& run, const Reader& step, int shards) {
  std::vector<StepTensor> tensors;
  for (const Reader::Entry& each : step.tensors()) tensors.push_back({each.name, each.type, each.shape});
  const auto elements = [&](std::size_t tensor, std::int64_t begin, std::int64_t count, void* target) {
    const Reader::Entry& entry = step.tensors()[tensor];
    step.read(entry.name, entry.type, entry.shape, begin, count, target);
  };
  writeStep(communicator, run, step.metadata(), tensors, elements, shards);
}

}  // namespace tandem::checkpoint
