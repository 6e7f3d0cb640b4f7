#pragma once
// Pipeline parallelism: which layers each stage has, its program, and the order in which it goes through micro batches.
//
// The embedding belongs to the first stage and the last norm with the loss to the last. What crosses from one stage to
// the next is the residual stream alone. Micro batches follow each other in the order "one forward, one backward"
// (Narayanan et al. 2019, PipeDream-Flush), which keeps no more of them in flight than there are stages behind.
//
// A rank may hold several runs of layers: stage s of `ranks` x `runs` (virtual) stages is run s / ranks of rank
// s % ranks. Then they are interleaved (Narayanan et al. 2021, section 2.2): as many micro batches as there are ranks
// go through a run before the next run's turn, so that the pipeline fills and drains `runs` times faster.

#include <span>
#include <string>
#include <vector>

#include "common/graph/program.h"
#include "common/sharding/layout.h"

namespace tandem::sharding {

// The layers of each stage: runs such that the most expensive stage is as cheap as possible, by the operations that the
// program counts, loss included. At least one layer each.
std::vector<Range> stageLayers(const graph::Program& forward, int stages);

// The part of a forward program that a stage runs, with what it receives from other pipeline ranks and sends to them;
// `layers` are those of each stage.
graph::Program stageProgram(const graph::Program& forward, int stage, std::span<const Range> layers, int ranks);

// Parameters that the first stage and the last both name (a tied embedding); none of one stage.
std::vector<std::string> sharedByStages(const graph::Program& forward, std::span<const Range> layers);

// Makes what a program sends survive its run, since the exchange goes on meanwhile.
graph::Program keepWhatIsSent(const graph::Program& program);

// A pipeline rank's work of a step, in its order. Of several runs of layers, micro batches are a multiple of the ranks.
struct StageTask {
  bool isForward = true;
  std::int64_t microBatch = 0;
  int run = 0;  // of layers
  bool operator==(const StageTask&) const = default;
};
std::vector<StageTask> stageSchedule(int rank, int ranks, int runs, std::int64_t microBatches);
// The same of forward passes alone, as in evaluation: those of one micro batch, or of up to as many as there are ranks.
std::vector<StageTask> forwardSchedule(int runs, std::int64_t microBatches);

// Micro batches that a rank has begun and not ended in a run of layers at any time, at most.
std::int64_t microBatchesInFlight(std::span<const StageTask> schedule, int run);
// That of a rank with one run.
std::int64_t microBatchesInFlight(int stage, int stages, std::int64_t microBatches);

}  // namespace tandem::sharding
