#include <sstream>

#include "common/base/units.h"
#include "common/train/trainer.h"

namespace tandem::train {
namespace {

std::string line(const std::string& what, std::int64_t bytes) {
  const std::string text = base::formatBytes(bytes);
  return "  " + what + std::string(what.size() < 30 ? 30 - what.size() : 1, ' ') + text + "\n";
}

}  // namespace

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
  const std::int64_t weights = layout.count() * base::byteSize(options.storage);
  const std::int64_t gradients = layout.count() * 4;
  const std::int64_t states = layout.shardCount(0) * (low ? 12 : 8);
  const double perToken = modelFlopsPerToken(configuration, program.parameterCount(), options.sequenceLength);

  std::ostringstream text;
  text << configuration.type << " model of " << program.parameterCount() << " parameters ("
       << base::formatCount(static_cast<double>(program.parameterCount())) << "), " << ranks << " ranks\n";
  text << "a step: " << shape.rows << " rows of " << options.sequenceLength << " tokens; a rank computes "
       << shape.microBatches << " micro batches of " << shape.microBatch << " rows\n";
  text << "operations of a step: " << base::formatFlops(perToken * static_cast<double>(options.batchTokens))
       << " by 6N + 12LdT; of a rank's micro batch as planned: " << base::formatFlops(graph::totalCost(program).flops)
       << "\n";
  text << "memory of rank 0:\n";
  text << line("weights", weights) << line("gradients", gradients)
       << line(low ? "optimizer states and masters" : "optimizer states", states)
       << line("activations", plan.arenaBytes) << line("all of these", weights + gradients + states + plan.arenaBytes);
  text << graph::memoryTable(program, plan);
  return text.str();
}

}  // namespace tandem::train
