#include <sstream>

#include "common/base/units.h"
#include "common/model/transformer.h"
#include "common/train/rank_plan.h"
#include "common/train/trainer.h"

namespace tandem::train {

namespace {

// ", with up to 4 and 2 micro batches in flight in its runs of layers".
std::string inFlight(const RankPlan& rank) {
  if (rank.grid.pipeline == 1) return "";
  std::string counts;
  for (const RankPlan::Run& run : rank.runs) {
    counts += (counts.empty() ? "" : " and ") + std::to_string(run.inFlight);
  }
  return ", with up to " + counts + " micro batches in flight" + (rank.runs.size() > 1 ? " in its runs of layers" : "");
}

}  // namespace

std::string describePlan(const TrainOptions& options, int ranks) {
  const RankPlan rank = planFirstRank(options, ranks);
  const BatchShape& shape = rank.shape;
  const std::int64_t whole = model::buildLoss(rank.configuration, 1, 1, options.storage).parameterCount();
  const std::int64_t parameters =
      options.adapters ? equivalentParameters(rank.runs[0].program.parameterCount(), whole) : whole;
  const bool low = options.storage != base::DType::f32;
  const graph::OtherMemory states{low ? "optimizer states and masters" : "optimizer states",
                                  rank.optimizerBytes(options)};
  const bool onHost = options.optimizer.statesOnHost;
  const double perToken = modelFlopsPerToken(rank.configuration, parameters, options.sequenceLength);

  std::vector<graph::ProgramInFlight> programs;
  double operations = 0;
  for (const RankPlan::Run& run : rank.runs) {
    programs.push_back({run.program, run.memory, run.inFlight});
    operations += graph::totalCost(run.program).flops;
  }

  std::ostringstream text;
  text << rank.configuration.type << " model of " << parameters << " parameters ("
       << base::formatCount(static_cast<double>(parameters)) << "), " << ranks << " ranks\n";
  if (options.grid) text << "grid " << rank.grid.text() << "\n";
  text << "a step: " << shape.rows << " rows of " << options.sequenceLength << " tokens; a rank computes "
       << shape.microBatches << " micro batches of " << shape.microBatch << " rows\n";
  text << "operations of a step: " << base::formatFlops(perToken * static_cast<double>(options.batchTokens))
       << " by 6N + 12LdT; of a rank's micro batch as planned: " << base::formatFlops(operations) << "\n";
  text << "of rank 0" << inFlight(rank) << ":\n"
       << graph::memoryTable(programs, onHost ? std::vector<graph::OtherMemory>{} : std::vector{states});
  if (onHost) text << "of rank 0 on its host: " << states.kind << " of " << base::formatBytes(states.bytes) << "\n";
  return text.str();
}

}  // namespace tandem::train
