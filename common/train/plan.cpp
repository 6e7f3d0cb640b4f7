#include <sstream>

#include "common/base/units.h"
#include "common/model/transformer.h"
#include "common/train/trainer.h"

namespace tandem::train {

std::string describePlan(const TrainOptions& options, int ranks) {
  const model::Configuration configuration = configurationOf(options);
  const sharding::Grid grid = gridOf(options, ranks);
  sharding::demandFitting(grid, configuration, options.sequenceLength);
  const BatchShape shape = shareOut(options, grid.data);
  const sharding::PartitionedProgram loss = lossPart(configuration, shape.microBatch, options.sequenceLength,
                                                     options.storage, grid, {}, adaptersOf(options.adapters));
  const graph::Program program = trainingProgram(loss.program, options.recompute);
  const std::int64_t parameters = options.adapters
                                      ? equivalentParameters(program)
                                      : model::buildLoss(configuration, 1, 1, options.storage).parameterCount();
  const graph::MemoryPlan plan = graph::planMemory(program);
  const auto ownership = options.optimizer.method == optim::Method::muon
                             ? sharding::FlatLayout::Ownership::wholeParameters
                             : sharding::FlatLayout::Ownership::anywhere;
  const sharding::FlatLayout layout = runtime::layoutOf(program, grid.sharers(), ownership, loss.parts);
  const bool low = options.storage != base::DType::f32;
  // Both moments, and beside weights of less than 32 bits their masters.
  const std::int64_t elementBytes = 2 * base::byteSize(options.optimizer.states) + (low ? 4 : 0);
  const graph::OtherMemory states{low ? "optimizer states and masters" : "optimizer states",
                                  layout.shardCount(0) * elementBytes};
  const double perToken = modelFlopsPerToken(configuration, parameters, options.sequenceLength);

  std::ostringstream text;
  text << configuration.type << " model of " << parameters << " parameters ("
       << base::formatCount(static_cast<double>(parameters)) << "), " << ranks << " ranks\n";
  if (options.grid) text << "grid " << grid.text() << "\n";
  text << "a step: " << shape.rows << " rows of " << options.sequenceLength << " tokens; a rank computes "
       << shape.microBatches << " micro batches of " << shape.microBatch << " rows\n";
  text << "operations of a step: " << base::formatFlops(perToken * static_cast<double>(options.batchTokens))
       << " by 6N + 12LdT; of a rank's micro batch as planned: " << base::formatFlops(graph::totalCost(program).flops)
       << "\n";
  text << "of rank 0:\n" << graph::memoryTable(program, plan, {states});
  return text.str();
}

}  // namespace tandem::train
