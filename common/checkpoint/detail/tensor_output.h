#pragma once
// Writes files of tensors, by all ranks together: each takes a share of the tensors, whose places are known before.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "common/checkpoint/family.h"
#include "common/checkpoint/model_source.h"
#include "common/checkpoint/safetensors.h"
#include "common/comm/communicator.h"

namespace tandem::checkpoint::detail {

// Takes the bytes of a tensor, piece by piece in their order.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void put(std::span<const std::byte> bytes) = 0;
  // As many bytes that lie in a file already.
  virtual void copy(const FilePlace& place, std::int64_t bytes) = 0;
};

struct OutputFile {
  std::filesystem::path path;
  FileLayout layout;
};

// Each file has its name once all are complete; after a failure none is left. Collective.
void writeTensorFiles(comm::Communicator& communicator, std::span<const OutputFile> files,
                      const std::function<void(const StoredTensor& tensor, Sink& sink)>& give);

// The tensor of theirs that a part of a parameter of ours is, encoded. Holds a block of it, and the whole parameter
// only where that is transposed.
void writePart(const ModelSource& model, const Parameter& parameter, const Part& part, Encoding encoding,
               Sink& sink);

}  // namespace tandem::checkpoint::detail
