#pragma once
// What a step consists of: shards, and where in them each piece of each logical tensor lies.

#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/shape.h"
#include "common/checkpoint/checkpoint.h"

namespace tandem::checkpoint::detail {

// Elements targetBegin ... of the flattened tensor are the elements sourceBegin ... of its dataset in a shard; and with
// repeats > 1, as many runs of that length, consecutive in the shard and `stride` apart in the tensor.
struct PlacedPiece {
  int shard = 0;
  std::int64_t sourceBegin = 0;
  std::int64_t targetBegin = 0;
  std::int64_t count = 0;
  std::int64_t repeats = 1;
  std::int64_t stride = 0;

  // The run `index`, as a piece of its own.
  PlacedPiece run(std::int64_t index) const {
    return {shard, sourceBegin + index * count, targetBegin + index * stride, count, 1, 0};
  }
};

struct PlacedTensor {
  std::string name;
  base::DType type = base::DType::f32;
  base::Shape shape;
  std::vector<PlacedPiece> pieces;  // by their first elements; their runs cover each element once
};

struct Shard {
  std::string file;
  std::int64_t bytes = 0;
  std::string hash;
};

struct Layout {
  std::vector<Shard> shards;
  std::vector<PlacedTensor> tensors;  // ascending by name
};

// What one rank has, as text for the rank that merges.
std::string describe(std::span<const LocalTensor> tensors);

// The tensors of all ranks, from every rank's description. Throws Error of kind badData when the pieces of a tensor do
// not cover it exactly once or the ranks disagree about it.
std::vector<PlacedTensor> merge(const std::vector<std::string>& descriptions);

// The JSON of checkpoint.h5:/layout. Parsing checks everything (kind badData): names of shards, ranges, coverage.
std::string toText(const Layout& layout);
Layout parseLayout(const std::string& text);

}  // namespace tandem::checkpoint::detail
