#include <sstream>

#include "common/base/units.h"
#include "common/train/trainer.h"

namespace tandem::train {

std::string describePlan(const TrainOptions& options, int ranks) {
  const model::Configuration configuration = model::readConfiguration(options.model);
  const BatchShape shape = shareOut(options, ranks);
  const graph::Program program =
      trainingProgram(configuration, shape.microBatch, options.sequenceLength, options.storage, options.recompute);
  const graph::MemoryPlan plan = graph::planMemory(program);
  const auto ownership = options.optimizer.method == optim::Method::muon
                             ? sharding::FlatLayout::Ownership::wholeParameters
                             : sharding::FlatLayout::Ownership::anywhere;
  const sharding::FlatLayout layout = runtime::layoutOf(program, ranks, ownership);
  const bool low = options.storage != base::DType::f32;
  // Both moments, and beside weights of less than 32 bits their masters.
  const std::int64_t elementBytes = 2 * base::byteSize(options.optimizer.states) + (low ? 4 : 0);
  const graph::OtherMemory states{low ? "optimizer states and masters" : "optimizer states",
                                  layout.shardCount(0) * elementBytes};
  const double perToken = modelFlopsPerToken(configuration, program.parameterCount(), options.sequenceLength);

  std::ostringstream text;
  text << configuration.type << " model of " << program.parameterCount() << " parameters ("
       << base::formatCount(static_cast<double>(program.parameterCount())) << "), " << ranks << " ranks\n";
  text << "a step: " << shape.rows << " rows of " << options.sequenceLength << " tokens; a rank computes "
       << shape.microBatches << " micro batches of " << shape.microBatch << " rows\n";
  text << "operations of a step: " << base::formatFlops(perToken * static_cast<double>(options.batchTokens))
       << " by 6N + 12LdT; of a rank's micro batch as planned: " << base::formatFlops(graph::totalCost(program).flops)
       << "\n";
  text << "of rank 0:\n" << graph::memoryTable(program, plan, {states});
  return text.str();
}

}  // namespace tandem::train
