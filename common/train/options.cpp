#include "common/train/options.h"

#include <algorithm>

#include "common/base/error.h"

namespace tandem::train {
namespace {

using base::Error;
using base::ErrorKind;

// More rows at once make better matrix products until these are large; after that they only cost memory.
constexpr std::int64_t microBatchTokens = 2048;

std::string divisors(std::int64_t number) {
  std::string text;
  for (std::int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  }
  return text;
}

std::string inGroups(const sharding::Grid& grid) {
  if (grid.microBatchUnit() == 1) return "";
  return " into groups of " + std::to_string(grid.microBatchUnit()) +
         " micro batches, which vp=" + std::to_string(grid.virtualStages) + " on pp=" + std::to_string(grid.pipeline) +
         " takes";
}

std::int64_t chooseMicroBatch(std::int64_t rowsPerRank, std::int64_t sequenceLength) {
  const std::int64_t most = std::clamp<std::int64_t>(microBatchTokens / sequenceLength, 1, rowsPerRank);
  for (std::int64_t rows = most; rows > 1; --rows) {
    if (rowsPerRank % rows == 0) return rows;
  }
  return 1;
}

}  // namespace

base::DType parsePrecision(const std::string& text) {
  if (text == "fp32") return base::DType::f32;
  if (text == "bf16") return base::DType::bf16;
  if (text == "fp16") return base::DType::f16;
  throw Error(ErrorKind::usage, "--precision is '" + text + "'; it can be fp32, bf16 or fp16");
}

std::string whyNotRunnable(const TrainOptions& options, const sharding::Grid& grid) {
  if (grid.pipeline > 1 && options.cudaGraphs) {
    return "--cuda-graphs on records whole micro batches, which pp=" + std::to_string(grid.pipeline) +
           " interleaves; use pp=1 or --cuda-graphs off";
  }
  if (options.fp8 && (grid.tensor > 1 || grid.pipeline > 1)) {
    return "--fp8 keeps one scale a matrix, which tp and pp share out over ranks; use tp=1 and pp=1";
  }
  if (!options.samplePrompts.empty() && (options.adapters || grid.tensor > 1 || grid.pipeline > 1 || grid.zero > 2)) {
    return "--sample-prompt lets rank 0 write, which needs all weights there, and no adapters beside them; leave it "
           "out";
  }
  if (options.adapters && (grid.tensor > 1 || grid.pipeline > 1 || grid.context > 1)) {
    return "adapters are learned by data-parallel ranks alone; use dp=" + std::to_string(grid.ranks());
  }
  if (options.preference && (grid.tensor > 1 || grid.pipeline > 1 || grid.context > 1)) {
    return "preferences are learned by data-parallel ranks alone; use dp=" + std::to_string(grid.ranks());
  }
  if (options.preference && grid.zero > 2) {
    return "learning preferences takes forward passes of their own, for which weights are not shared out; use zero=2";
  }
  if (options.adapters && grid.zero > 1) {
    return "adapters are too small to share out, and the weights beside them are held whole; use zero=1";
  }
  if (grid.tensor > 1 && options.optimizer.method == optim::Method::muon) {
    return "Muon works on whole matrices, which tp=" + std::to_string(grid.tensor) +
           " cuts; use tp=1 or --optimizer adamw";
  }
  return "";
}

sharding::Grid gridOf(const TrainOptions& options, int ranks) {
  const sharding::Grid grid = options.grid ? *options.grid : sharding::Grid{.data = ranks};
  const std::string reason = whyNotRunnable(options, grid);
  if (!reason.empty()) throw Error(ErrorKind::usage, "--shard " + grid.text() + ": " + reason);
  return grid;
}

OnStraggler parseOnStraggler(const std::string& text) {
  if (text == "warn") return OnStraggler::warn;
  if (text == "checkpoint-and-exit") return OnStraggler::checkpointAndExit;
  throw Error(ErrorKind::usage, "--on-straggler is '" + text + "'; it can be warn or checkpoint-and-exit");
}

BatchShape shareOut(const TrainOptions& options, const sharding::Grid& grid) {
  const std::int64_t unit = options.sequenceLength * grid.data * grid.microBatchUnit();
  if (options.batchTokens < unit || options.batchTokens % unit != 0) {
    const std::int64_t below = options.batchTokens / unit * unit;
    throw Error(ErrorKind::usage, "--batch-tokens " + std::to_string(options.batchTokens) +
                                      " does not divide into rows of " + std::to_string(options.sequenceLength) +
                                      " tokens on " + std::to_string(grid.data) + " ranks" + inGroups(grid) +
                                      "; possible are multiples of " + std::to_string(unit) + ", such as " +
                                      (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + unit));
  }
  BatchShape shape;
  shape.rows = options.batchTokens / options.sequenceLength;
  shape.rowsPerRank = shape.rows / grid.data;
  const std::int64_t rowsToDivide = shape.rowsPerRank / grid.microBatchUnit();
  shape.microBatch =
      options.microBatch > 0 ? options.microBatch : chooseMicroBatch(rowsToDivide, options.sequenceLength);
  if (rowsToDivide % shape.microBatch != 0) {
    throw Error(ErrorKind::usage, "--micro-batch " + std::to_string(shape.microBatch) + " does not divide the " +
                                      std::to_string(shape.rowsPerRank) + " rows of a rank" + inGroups(grid) +
                                      "; possible are " + divisors(rowsToDivide));
  }
  shape.microBatches = shape.rowsPerRank / shape.microBatch;
  return shape;
}

}  // namespace tandem::train
