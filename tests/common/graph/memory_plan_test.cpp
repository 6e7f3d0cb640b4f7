#include <cmath>

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

std::vector<Program> variants(const SmallModel& model) {
  std::vector<Program> programs;
  for (const Program& forward : {gpt2Like(model), llamaLike(model)}) {
    programs.push_back(forward);
    programs.push_back(fuse(forward));
    programs.push_back(differentiate(forward));
    for (const Recompute policy : {Recompute::nothing, Recompute::selective, Recompute::full}) {
      programs.push_back(recompute(fuse(differentiate(fuse(forward))), policy));
    }
  }
  return programs;
}

struct Life {
  std::int64_t begin, end;    // bytes of the arena
  std::size_t written, read;  // first and last node
  std::size_t id;
};

// Written anew here, from the program alone, to check what the plan has made of it.
std::vector<Life> livesOf(const Program& program, const MemoryPlan& plan) {
  std::vector<Life> lives;
  for (std::size_t id = 0; id < program.tensors().size(); ++id) {
    if (plan.offsets[id] < 0) continue;
    const Tensor& tensor = program.tensors()[id];
    const std::int64_t bytes = tensor.shape.count() * base::byteSize(tensor.type);
    Life life{plan.offsets[id], plan.offsets[id] + bytes, program.nodes().size(), 0, id};
    for (std::size_t index = 0; index < program.nodes().size(); ++index) {
      const Node& node = program.nodes()[index];
      for (const TensorId output : node.outputs) {
        if (output == static_cast<TensorId>(id)) life.written = life.read = index;
      }
      for (const TensorId input : node.inputs) {
        if (input == static_cast<TensorId>(id)) life.read = index;
      }
    }
    lives.push_back(life);
  }
  return lives;
}

// One dies in the node that writes the other in its place, where the operator allows it.
bool inPlace(const Program& program, const Life& earlier, const Life& later) {
  if (earlier.read != later.written || earlier.begin != later.begin || earlier.end != later.end) return false;
  const Node& node = program.nodes()[later.written];
  for (std::size_t output = 0; output < node.outputs.size(); ++output) {
    if (node.outputs[output] != static_cast<TensorId>(later.id)) continue;
    for (std::size_t input = 0; input < node.inputs.size(); ++input) {
      if (node.inputs[input] == static_cast<TensorId>(earlier.id) &&
          !mayShareMemory(node, static_cast<int>(output), static_cast<int>(input))) {
        return false;
      }
    }
  }
  return true;
}

TEST(MemoryPlan, givesNoTwoLiveTensorsTheSameMemory) {
  for (const Program& program : variants({.layers = 3})) {
    const MemoryPlan plan = planMemory(program);
    const std::vector<Life> lives = livesOf(program, plan);
    for (const Life& one : lives) {
      EXPECT_EQ(one.begin % 64, 0);
      EXPECT_LE(one.end, plan.arenaBytes);
      for (const Life& other : lives) {
        if (one.id == other.id || one.end <= other.begin || other.end <= one.begin) continue;
        if (one.read < other.written || other.read < one.written) continue;
        EXPECT_TRUE(inPlace(program, one, other) || inPlace(program, other, one))
            << program.tensors()[one.id].name << " and " << program.tensors()[other.id].name;
      }
    }
  }
}

TEST(MemoryPlan, placesEveryActivationThatANodeNamesAndNothingElse) {
  for (const Program& program : variants({})) {
    const MemoryPlan plan = planMemory(program);
    std::vector<bool> named(program.tensors().size(), false);
    for (const Node& node : program.nodes()) {
      for (const TensorId id : node.outputs) {
        if (id != none) named[static_cast<std::size_t>(id)] = true;
      }
    }
    for (std::size_t id = 0; id < named.size(); ++id) {
      const bool placed = named[id] && program.tensors()[id].role == Role::activation;
      EXPECT_EQ(plan.offsets[id] >= 0, placed) << program.tensors()[id].name;
    }
  }
}

TEST(MemoryPlan, rightResultsFromAnArenaPoisonedBetweenUses) {
  for (const Program& program : variants({.layers = 3})) {
    ProgramRunner clean(program), poisoned(program, true);
    const Batch batch = randomBatch(program);
    EXPECT_EQ(clean.run(batch), poisoned.run(batch));
    EXPECT_EQ(clean.gradients(), poisoned.gradients());
    for (const float loss : poisoned.run(batch)) EXPECT_TRUE(std::isfinite(loss));
  }
}

TEST(MemoryPlan, losesAtMostThreePercentOnTransformers) {
  for (const std::int64_t layers : {1, 4, 12, 24}) {
    const SmallModel models[] = {{.batch = 4,
                                  .time = 256,
                                  .vocabulary = 512,
                                  .width = 768,
                                  .heads = 12,
                                  .kvHeads = 12,
                                  .hidden = 3072,
                                  .layers = layers},
                                 {.batch = 1,
                                  .time = 128,
                                  .vocabulary = 512,
                                  .width = 384,
                                  .heads = 6,
                                  .kvHeads = 2,
                                  .hidden = 1024,
                                  .layers = layers}};
    for (const SmallModel& model : models) {
      for (const Program& program : variants(model)) {
        const MemoryPlan plan = planMemory(program);
        EXPECT_GE(plan.arenaBytes, plan.peakLiveBytes);
        EXPECT_LE(static_cast<double>(plan.arenaBytes), 1.03 * static_cast<double>(plan.peakLiveBytes))
            << layers << " layers, " << program.nodes().size() << " nodes, arena " << plan.arenaBytes << " live "
            << plan.peakLiveBytes;
      }
    }
  }
}

TEST(MemoryPlan, theArenaOfAForwardPassDoesNotGrowWithTheLayers) {
  SmallModel model{.time = 64, .width = 64, .hidden = 256, .layers = 2};
  const std::int64_t two = planMemory(fuse(gpt2Like(model))).arenaBytes;
  model.layers = 20;
  EXPECT_EQ(planMemory(fuse(gpt2Like(model))).arenaBytes, two);
}

// The residual is read by the backward pass, the projection is not: only that one can be overwritten.
TEST(MemoryPlan, rotatesAndAddsInPlace) {
  const Program program = differentiate(llamaLike({}));
  const MemoryPlan plan = planMemory(program);
  const auto offset = [&](const char* name) { return plan.offsets[static_cast<std::size_t>(program.find(name))]; };
  EXPECT_EQ(offset("layers.0.qkv"), offset("layers.0.rotary"));
  EXPECT_EQ(offset("layers.1.projection"), offset("layers.1.middle"));
}

std::string tableOf(const Program& program, std::int64_t times, const std::vector<OtherMemory>& others = {}) {
  const MemoryPlan plan = planMemory(program);
  return memoryTable(std::vector<ProgramInFlight>{{program, plan, times}}, others);
}

// The number of tensors that a row of the table tells.
std::int64_t tensorsOf(const std::string& table, const std::string& kind) {
  const std::size_t row = table.find("\n" + kind + "  ");
  return row == std::string::npos ? -1 : std::stoll(table.substr(row + 1 + kind.size()));
}

TEST(MemoryPlan, tableCountsParametersOnceAndActivationsAsOftenAsTheyAreInFlight) {
  const Program program = differentiate(gpt2Like({}));
  const std::string one = tableOf(program, 1), three = tableOf(program, 3);
  for (const char* kind : {"parameters", "gradients"}) EXPECT_EQ(tensorsOf(three, kind), tensorsOf(one, kind)) << kind;
  for (const char* kind : {"inputs", "outputs", "activations at the peak"}) {
    EXPECT_GT(tensorsOf(one, kind), 0) << kind;
    EXPECT_EQ(tensorsOf(three, kind), 3 * tensorsOf(one, kind)) << kind;
  }
}

TEST(MemoryPlan, tableTakesInWhatElseNeedsMemory) {
  const Program program = differentiate(gpt2Like({}));
  const std::string table = tableOf(program, 1, {{"optimizer states", std::int64_t{1} << 40}});
  EXPECT_NE(table.find("\noptimizer states "), std::string::npos) << table;
  EXPECT_NE(table.find("1.0 TiB  100.0%\n"), std::string::npos) << table;
  EXPECT_NE(table.rfind("1.0 TiB"), table.find("1.0 TiB")) << table;  // in the total too
}

TEST(MemoryPlan, tableAddsUp) {
  const Program program = fuse(differentiate(fuse(gpt2Like({}))));
  const std::string table = tableOf(program, 1);
  for (const char* part : {"parameters", "gradients", "inputs", "outputs", "activations at the peak", "  from linear ",
                           "lost between activations", "total", "100.0%"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
  std::size_t width = 0;
  for (std::size_t begin = 0; begin < table.size(); begin = table.find('\n', begin) + 1) {
    const std::size_t length = table.find('\n', begin) - begin;
    if (width == 0) width = length;
    EXPECT_EQ(length, width) << table;
  }
}

}  // namespace
}  // namespace tandem::graph::test
