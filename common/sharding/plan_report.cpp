// A planning as text.

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "common/base/units.h"
#include "common/sharding/planner.h"

namespace tandem::sharding {
namespace {

// Three digits that matter, in the unit that suits.
std::string seconds(double value) {
  static constexpr const char* units[] = {" s", " ms", " us"};
  std::size_t unit = 0;
  for (; unit < 2 && value < 1; ++unit) value *= 1000;
  std::ostringstream text;
  text << std::fixed << std::setprecision(value >= 100 ? 0 : value >= 10 ? 1 : 2) << value << units[unit];
  return text.str();
}

std::string percent(double share) { return std::to_string(std::lround(100 * share)) + " %"; }

class Report {
 public:
  Report(const PlanRequest& request, const Planning& planning)
      : request_(request), planning_(planning), taken_(planning.taken()) {}

  std::string text() {
    head();
    table();
    memory();
    time();
    losers();
    return out_.str();
  }

 private:
  void head() {
    const Cluster& cluster = request_.cluster;
    out_ << "plan for '" << cluster.name << "': " << cluster.nodes << (cluster.nodes == 1 ? " node of " : " nodes of ")
         << cluster.devicesPerNode << (cluster.devicesPerNode == 1 ? " device" : " devices") << ", "
         << base::formatBytes(cluster.usableBytes()) << " each to use, " << base::formatFlops(rate())
         << "/s each in matrix products\n"
         << "a step has " << request_.batchTokens / request_.sequenceLength << " rows of " << request_.sequenceLength
         << " tokens; " << planning_.weighed << " plans were weighed\n";
  }

  double rate() const { return request_.cluster.matrixRate(request_.storage); }

  void table() {
    std::size_t width = 4;
    for (const Plan& plan : planning_.best) width = std::max(width, plan.grid.text().size());
    out_ << std::left << std::setw(static_cast<int>(width) + 2) << "grid" << std::setw(11) << "recompute" << std::right
         << std::setw(12) << "micro batch" << std::setw(12) << "memory" << std::setw(11) << "step" << std::setw(12)
         << "tokens/s"
         << "\n";
    for (const Plan& plan : planning_.best) {
      out_ << std::left << std::setw(static_cast<int>(width) + 2) << plan.grid.text() << std::setw(11)
           << recomputeText(plan.recompute) << std::right << std::setw(12) << plan.microBatch << std::setw(12)
           << base::formatBytes(plan.memory.total()) << std::setw(11) << seconds(plan.time.total()) << std::setw(12)
           << std::llround(static_cast<double>(request_.batchTokens) / plan.time.total()) << "\n";
    }
  }

  void memoryRow(const char* kind, std::int64_t bytes) {
    out_ << "  " << std::left << std::setw(28) << kind << std::right << std::setw(12) << base::formatBytes(bytes)
         << std::setw(7) << percent(static_cast<double>(bytes) / static_cast<double>(taken_.memory.total())) << "\n";
  }
  void memory() {
    const PredictedMemory& memory = taken_.memory;
    out_ << "taken: " << taken_.grid.text() << "; memory of the fullest rank:\n";
    memoryRow("weights", memory.weights);
    memoryRow("gradients", memory.gradients);
    memoryRow(request_.storage == base::DType::f32 ? "optimizer states" : "optimizer states and masters",
              memory.optimizerStates);
    if (memory.buckets > 0) memoryRow("whole layers at work", memory.buckets);
    memoryRow("activations", memory.activations);
    if (memory.exchanges > 0) memoryRow("sums under way", memory.exchanges);
    memoryRow("total", memory.total());
    if (taken_.grid.pipeline == 1) return;
    out_ << "layers of the stages:";
    for (const std::int64_t layers : taken_.stageLayers) out_ << " " << layers;
    out_ << "\n";
  }

  void timeRow(const char* kind, double value) {
    if (value <= 0) return;
    out_ << "  " << std::left << std::setw(28) << kind << std::right << std::setw(12) << seconds(value) << std::setw(7)
         << percent(value / taken_.time.total()) << "\n";
  }
  void time() {
    const PredictedTime& time = taken_.time;
    out_ << "time of a step of " << taken_.microBatches
         << (taken_.microBatches == 1 ? " micro batch" : " micro batches") << ":\n";
    timeRow("computing", time.compute);
    timeRow("update", time.update);
    timeRow("pipeline fills and drains", time.bubble);
    timeRow("exchange, tensor ranks", time.tensor);
    timeRow("exchange, context ranks", time.context);
    timeRow("exchange, pipeline stages", time.pipeline);
    timeRow("exchange, data ranks", time.data);
    timeRow("total", time.total());
    if (time.hidden > 0) out_ << "  beside computing, " << seconds(time.hidden) << " of exchanges more\n";
  }

  void losers() {
    if (!planning_.losers.empty()) out_ << "not taken:\n";
    for (const auto& [reason, losers] : planning_.losers) {
      out_ << "  " << losers.count << " " << reason << "; the closest: " << losers.closest << "\n";
    }
  }

  const PlanRequest& request_;
  const Planning& planning_;
  const Plan& taken_;
  std::ostringstream out_;
};

}  // namespace

std::string describe(const PlanRequest& request, const Planning& planning) { return Report(request, planning).text(); }

}  // namespace tandem::sharding
