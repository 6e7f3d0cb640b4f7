#include "common/train/context_batch.h"

#include <algorithm>

#include "common/sharding/context.h"

namespace tandem::train {

data::Batch contextBatch(const data::Batch& batch, std::int64_t rowsAtOnce, const sharding::Grid& grid,
                         const sharding::Coordinates& own) {
  const auto pieces = sharding::contextPieces(batch.sequenceLength, own.context, grid.context);
  const std::int64_t length = pieces[0].count;
  data::Batch part(batch.rows, 2 * length);
  part.firstSample = batch.firstSample;
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const std::int64_t inGroup = row % rowsAtOnce, group = row - inGroup;
    for (std::int64_t half = 0; half < 2; ++half) {
      const std::int64_t from = row * batch.sequenceLength + pieces[static_cast<std::size_t>(half)].begin;
      const std::int64_t to = (2 * row + half) * length;
      const std::int64_t starts = (2 * group + half * rowsAtOnce + inGroup) * length;
      const auto copy = [&](const std::vector<std::int32_t>& source, std::vector<std::int32_t>& target,
                            std::int64_t begin) { std::copy_n(source.begin() + from, length, target.begin() + begin); };
      copy(batch.tokens, part.tokens, to);
      copy(batch.targets, part.targets, to);
      copy(batch.positions, part.positions, to);
      copy(batch.documentStart, part.documentStart, starts);
    }
  }
  part.targetCount = std::ranges::count_if(part.targets, [](std::int32_t target) { return target != data::noTarget; });
  return part;
}

}  // namespace tandem::train
