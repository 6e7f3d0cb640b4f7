#include "common/sharding/pipeline.h"

#include <algorithm>
#include <limits>
#include <map>

#include "common/base/error.h"
#include "common/graph/operators.h"

namespace tandem::sharding {
namespace {

using graph::Node;
using graph::none;
using graph::Operator;
using graph::Program;
using graph::Role;
using graph::Tensor;
using graph::TensorId;

std::int64_t layerCount(const Program& forward) {
  std::int32_t last = -1;
  for (const Node& node : forward.nodes()) last = std::max(last, node.layer);
  return last + 1;
}

// Of each node: what is in front of the first layer belongs to the first stage, what is behind the last to the last.
std::vector<int> stagesOfNodes(const Program& forward, std::span<const Range> layers) {
  std::vector<int> result;
  int stage = 0;
  for (const Node& node : forward.nodes()) {
    while (node.layer >= layers[static_cast<std::size_t>(stage)].end()) ++stage;
    result.push_back(stage);
  }
  return result;
}

bool isMade(const Tensor& tensor) { return tensor.role == Role::activation || tensor.role == Role::output; }

// Copies nodes of a program into another one, with the tensors that they name.
class StageWriter {
 public:
  explicit StageWriter(const Program& source) : source_(source), ids_(source.tensors().size(), none) {}

  TensorId tensor(TensorId id) {
    if (id == none) return none;
    TensorId& found = ids_[static_cast<std::size_t>(id)];
    if (found == none) {
      const Tensor& tensor = source_.tensor(id);
      found = result.addTensor(tensor.name, tensor.shape, tensor.type, tensor.role);
    }
    return found;
  }

  void copy(Node node) {
    for (TensorId& id : node.inputs) id = tensor(id);
    for (TensorId& id : node.outputs) id = tensor(id);
    result.setLayer(node.layer);
    result.addNode(node.op, std::move(node.inputs), std::move(node.outputs), std::move(node.attributes));
    result.setLayer(-1);
  }

  Program result;

 private:
  const Program& source_;
  std::vector<TensorId> ids_;
};

// The one tensor that nodes of `stage` or later read and earlier ones make.
TensorId streamInto(const Program& forward, const std::vector<int>& stages, int stage) {
  std::vector<int> madeBy(forward.tensors().size(), -1);
  TensorId stream = none;
  for (std::size_t index = 0; index < stages.size(); ++index) {
    const Node& node = forward.nodes()[index];
    for (const TensorId id : node.inputs) {
      if (id == none || !isMade(forward.tensor(id)) || stages[index] < stage ||
          madeBy[static_cast<std::size_t>(id)] >= stage) {
        continue;
      }
      TANDEM_ASSERT(stream == none || stream == id, "more than the residual stream crosses from stage to stage");
      stream = id;
    }
    for (const TensorId id : node.outputs) {
      if (id != none) madeBy[static_cast<std::size_t>(id)] = stages[index];
    }
  }
  TANDEM_ASSERT(stream != none, "nothing crosses from stage to stage");
  return stream;
}

}  // namespace

std::vector<Range> stageLayers(const Program& forward, int stages) {
  const std::int64_t layers = layerCount(forward);
  TANDEM_ASSERT(stages >= 1 && stages <= std::max<std::int64_t>(layers, 1), "at least a layer a stage");
  if (stages == 1) return {{0, layers}};
  std::vector<double> costs(static_cast<std::size_t>(layers), 0.0);
  for (const Node& node : forward.nodes()) {
    // Everything behind the layers weighs on the last of them.
    const std::int64_t layer = node.layer < 0 ? layers - 1 : node.layer;
    costs[static_cast<std::size_t>(layer)] += graph::cost(forward, node).flops;
  }
  // best[s][n]: the smallest possible most expensive of s + 1 stages over the first n layers; cut[s][n]: where the last
  // of these stages begins. Of equally good cuts the latest, which gives the rest to later stages no sooner than
  // needed.
  const auto count = static_cast<std::size_t>(layers);
  const double never = std::numeric_limits<double>::infinity();
  std::vector best(static_cast<std::size_t>(stages), std::vector<double>(count + 1, never));
  std::vector cut(static_cast<std::size_t>(stages), std::vector<std::size_t>(count + 1, 0));
  for (std::size_t n = 1; n <= count; ++n) best[0][n] = (n > 1 ? best[0][n - 1] : 0.0) + costs[n - 1];
  for (std::size_t stage = 1; stage < best.size(); ++stage) {
    for (std::size_t n = stage + 1; n <= count; ++n) {
      double own = 0;
      for (std::size_t begin = n - 1; begin >= stage; --begin) {
        own += costs[begin];
        const double most = std::max(own, best[stage - 1][begin]);
        if (most < best[stage][n]) {
          best[stage][n] = most;
          cut[stage][n] = begin;
        }
      }
    }
  }
  std::vector<Range> result(static_cast<std::size_t>(stages));
  std::size_t end = count;
  for (std::size_t stage = result.size(); stage-- > 0;) {
    const std::size_t begin = cut[stage][end];
    result[stage] = {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin)};
    end = begin;
  }
  return result;
}

Program stageProgram(const Program& forward, int stage, std::span<const Range> layers, int ranks) {
  const auto stages = static_cast<int>(layers.size());
  if (stages == 1) return forward;
  const std::vector<int> stageOf = stagesOfNodes(forward, layers);
  StageWriter writer(forward);
  if (stage > 0) {
    const TensorId received = writer.tensor(streamInto(forward, stageOf, stage));
    writer.result.addNode(Operator::receive, {}, {received}, graph::MessageAttributes{.peer = (stage - 1) % ranks});
  }
  for (std::size_t index = 0; index < stageOf.size(); ++index) {
    if (stageOf[index] == stage) writer.copy(forward.nodes()[index]);
  }
  if (stage + 1 < stages) {
    const TensorId sent = streamInto(forward, stageOf, stage + 1);
    writer.result.addNode(Operator::send, {writer.tensor(sent)}, {},
                          graph::MessageAttributes{.peer = (stage + 1) % ranks});
  }
  return std::move(writer.result);
}

std::vector<std::string> sharedByStages(const Program& forward, std::span<const Range> layers) {
  const int stages = static_cast<int>(layers.size());
  if (stages == 1) return {};
  const std::vector<int> stageOf = stagesOfNodes(forward, layers);
  std::map<std::string, int> firstStage;
  std::vector<std::string> shared;
  for (std::size_t index = 0; index < stageOf.size(); ++index) {
    for (const TensorId id : forward.nodes()[index].inputs) {
      if (id == none || forward.tensor(id).role != Role::parameter) continue;
      const auto [found, isNew] = firstStage.try_emplace(forward.tensor(id).name, stageOf[index]);
      if (isNew || found->second == stageOf[index]) continue;
      TANDEM_ASSERT(found->second == 0 && stageOf[index] == stages - 1,
                    "only the first and last stage share parameters");
      shared.push_back(found->first);
    }
  }
  return shared;
}

Program keepWhatIsSent(const Program& program) {
  Program result = program;
  for (const Node& node : result.nodes()) {
    if (node.op == Operator::send) result.tensor(node.inputs[0]).role = Role::output;
  }
  return result;
}

std::vector<StageTask> stageSchedule(int rank, int ranks, int runs, std::int64_t microBatches) {
  TANDEM_ASSERT(runs == 1 || microBatches % ranks == 0, "interleaved stages take micro batches in groups");
  // Forward passes in their order, and backward passes, which go through the runs from the last to the first.
  const auto task = [&](std::int64_t number, bool isForward) -> StageTask {
    if (runs == 1) return {isForward, number, 0};
    const std::int64_t ofGroup = std::int64_t{ranks} * runs;
    const auto run = static_cast<int>(number % ofGroup / ranks);
    return {isForward, number / ofGroup * ranks + number % ranks, isForward ? run : runs - 1 - run};
  };
  const std::int64_t behind = ranks - 1 - rank, passes = microBatches * runs;
  const std::int64_t ahead = std::min(runs == 1 ? behind : 2 * behind + std::int64_t{runs - 1} * ranks, passes);
  std::vector<StageTask> tasks;
  for (std::int64_t number = 0; number < ahead; ++number) tasks.push_back(task(number, true));
  for (std::int64_t number = 0; number < passes; ++number) {
    if (number + ahead < passes) tasks.push_back(task(number + ahead, true));
    tasks.push_back(task(number, false));
  }
  return tasks;
}

std::vector<StageTask> forwardSchedule(int runs, std::int64_t microBatches) {
  std::vector<StageTask> tasks;
  for (int run = 0; run < runs; ++run) {
    for (std::int64_t index = 0; index < microBatches; ++index) tasks.push_back({true, index, run});
  }
  return tasks;
}

std::int64_t microBatchesInFlight(std::span<const StageTask> schedule, int run) {
  std::int64_t inFlight = 0, most = 0;
  for (const StageTask& task : schedule) {
    if (task.run == run) inFlight += task.isForward ? 1 : -1;
    most = std::max(most, inFlight);
  }
  return most;
}

std::int64_t microBatchesInFlight(int stage, int stages, std::int64_t microBatches) {
  return std::min<std::int64_t>(stages - stage, microBatches);
}

}  // namespace tandem::sharding
