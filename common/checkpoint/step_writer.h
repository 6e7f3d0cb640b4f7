#pragma once
// Writes a step of ours from a source that is read bit by bit, so that no rank ever holds more than a block of it. For
// programs that convert; a run that trains saves with Writer, which lets it go on meanwhile.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_source.h"

namespace tandem::checkpoint {

struct StepTensor {
  std::string name;  // as LocalTensor has it
  base::DType type = base::DType::f32;
  base::Shape shape;
};

// Gives elements [begin, begin + count) of the flattened tensor of this number, as its type has them. Called on the
// rank that writes them, in ascending order.
using StepElements = std::function<void(std::size_t tensor, std::int64_t begin, std::int64_t count, void* target)>;

// Writes RUN/checkpoints/step-... in so many shards of equal size, whatever the number of ranks: the same bytes. Throws
// Error of kind usage when the folder has checkpoints already, or is in use. After a failure nothing is left.
// Collective.
void writeStep(comm::Communicator& communicator, const std::filesystem::path& run, const Metadata& metadata,
               std::span<const StepTensor> tensors, const StepElements& elements, int shards);

// Writes a model, wherever it comes from, as a step of its number: its parameters as they are stored, and its metadata.
// Whoever trains begins new states of the optimizer. Collective.
void writeModel(comm::Communicator& communicator, const std::filesystem::path& run, const ModelSource& model,
                int shards);

// Writes a step again, with all that it holds, in another number of shards. Collective.
void reshard(comm::Communicator& communicator, const std::filesystem::path& run, const Reader& step, int shards);

}  // namespace tandem::checkpoint
