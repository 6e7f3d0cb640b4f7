#pragma once
// What lies at a path, whether we can compute with it or not: the tensors of a checkpoint of ours, of a Hugging Face
// folder, of a safetensors or a GGUF file, as they are stored.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/gguf.h"
#include "common/comm/communicator.h"

namespace tandem::checkpoint {

struct InventoryTensor {
  std::string name;
  std::string type;
  base::Shape shape;
  std::int64_t bytes = 0;
  std::string file;  // its name; empty for a checkpoint of ours, whose shards share tensors
  std::string hash;  // XXH3-128 of the stored bytes, when asked for
};

struct Inventory {
  std::string format;  // "tandem-checkpoint", "safetensors" or "gguf"
  std::filesystem::path place;
  std::int64_t step = -1;                    // of a checkpoint of ours
  std::map<std::string, std::string> texts;  // configuration, options, progress, companions: those there are
  std::map<std::string, GgufValue> values;   // of GGUF
  std::vector<InventoryTensor> tensors;      // in the order of the files
};

// Ranks share the hashing. A damaged checkpoint is an Error, as for Reader. Collective.
Inventory takeInventory(comm::Communicator& communicator, const std::filesystem::path& path, bool hashes);

}  // namespace tandem::checkpoint
