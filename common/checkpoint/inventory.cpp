#include "common/checkpoint/inventory.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/hugging_face.h"
#include "common/checkpoint/model_source.h"
#include "common/checkpoint/safetensors.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t blockBytes = 4 << 20;

// Reads bytes [begin, begin + size) of the tensor of this number.
using ReadBytes = std::function<void(std::size_t tensor, std::int64_t begin, std::span<std::byte> target)>;

// Ranks hash tensors in turn; then all know all hashes.
void addHashes(comm::Communicator& communicator, std::vector<InventoryTensor>& tensors, const ReadBytes& read) {
  std::string own;
  const auto ranks = static_cast<std::size_t>(communicator.size());
  comm::agreeOn(communicator, [&] {
    std::vector<std::byte> block;
    for (auto i = static_cast<std::size_t>(communicator.rank()); i < tensors.size(); i += ranks) {
      base::Hasher hash;
      for (std::int64_t done = 0; done < tensors[i].bytes; done += blockBytes) {
        block.resize(static_cast<std::size_t>(std::min(blockBytes, tensors[i].bytes - done)));
        read(i, done, block);
        hash.update(block);
      }
      own += hash.hex() + "\n";
    }
  });
  const std::vector<std::string> all = comm::allGatherTexts(communicator, own);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::istringstream lines(all[rank]);
    for (std::size_t i = rank; i < tensors.size(); i += ranks) std::getline(lines, tensors[i].hash);
  }
}

Inventory ofOurs(comm::Communicator& communicator, const fs::path& path, bool hashes) {
  const Reader reader(communicator, path);
  const Metadata& metadata = reader.metadata();
  Inventory inventory{.format = "tandem-checkpoint", .place = reader.folder(), .step = metadata.step};
  inventory.texts = {{"configuration", metadata.configuration},
                     {"options", metadata.options},
                     {"progress", metadata.progress},
                     {"companions", metadata.companions}};
  for (const Reader::Entry& entry : reader.tensors()) {
    const std::int64_t bytes = entry.shape.count() * base::byteSize(entry.type);
    inventory.tensors.push_back({entry.name, base::name(entry.type), entry.shape, bytes, "", ""});
  }
  if (!hashes) return inventory;
  addHashes(communicator, inventory.tensors, [&](std::size_t i, std::int64_t begin, std::span<std::byte> target) {
    const Reader::Entry& entry = reader.tensors()[i];
    const std::int64_t size = base::byteSize(entry.type);
    reader.read(entry.name, entry.type, entry.shape, begin / size, std::ssize(target) / size, target.data());
  });
  return inventory;
}

// Files of theirs, opened on every rank.
struct Opened {
  Inventory inventory;
  std::vector<std::unique_ptr<TensorFile>> files;
};

Opened openFiles(const fs::path& path) {
  Opened opened;
  opened.inventory.place = path;
  opened.inventory.format = "safetensors";
  if (fs::is_directory(path)) {
    opened.files = openWeights(path);
    opened.inventory.texts["configuration"] = base::readFile(path / configurationName);
  } else if (path.extension() == ".safetensors") {
    opened.files.push_back(std::make_unique<SafetensorsFile>(path));
  } else {
    auto file = std::make_unique<GgufFile>(path);
    opened.inventory.format = "gguf";
    opened.inventory.values = file->values();
    opened.files.push_back(std::move(file));
  }
  return opened;
}

}  // namespace

Inventory takeInventory(comm::Communicator& communicator, const fs::path& path, bool hashes) {
  bool ours = false;
  Opened opened;
  std::vector<std::pair<const TensorFile*, const StoredTensor*>> sources;
  comm::agreeOn(communicator, [&] {
    ours = path.extension() != ".safetensors" && formatOf(path) == ModelFormat::tandem;
    if (ours) return;
    opened = openFiles(path);
    for (const auto& file : opened.files) {
      for (const StoredTensor& tensor : file->tensors()) {
        sources.emplace_back(file.get(), &tensor);
        opened.inventory.tensors.push_back(
            {tensor.name, tensor.type, tensor.shape, tensor.bytes, file->path().filename().string(), ""});
      }
    }
  });
  if (ours) return ofOurs(communicator, path, hashes);
  if (hashes) {
    addHashes(communicator, opened.inventory.tensors,
              [&](std::size_t i, std::int64_t begin, std::span<std::byte> target) {
                sources[i].first->read(sources[i].second->offset + begin, target);
              });
  }
  return std::move(opened.inventory);
}

}  // namespace tandem::checkpoint
