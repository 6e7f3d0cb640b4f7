// Whatever the grid, the family, the sizes and the documents: the same losses and gradients as on one rank, and the
// same checkpoint. Eight ranks form groups of any size, each of which has a case of its own.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "common/base/random.h"
#include "common/model/transformer.h"
#include "common/runtime/continuation_scorer.h"
#include "common/runtime/generator.h"
#include "common/sharding/decoding.h"
#include "common/train/model_state.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/train/small_world.h"

namespace tandem::train {
namespace {

using sharding::Grid;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed, 17) {}
  std::int64_t from(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_.nextBelow(static_cast<std::uint64_t>(most - least + 1)));
  }
  bool coin() { return from(0, 1) == 1; }
  template <class T>
  T oneOf(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(from(0, std::ssize(choices) - 1))];
  }

 private:
  base::RandomStream random_;
};

std::string field(const char* name, std::int64_t value) {
  return ", \"" + std::string(name) + "\": " + std::to_string(value);
}

// Sizes that divide by nothing in particular.
model::Configuration anyModel(Dice& dice) {
  const std::string family = dice.oneOf<std::string>({"gpt2", "llama", "mistral", "qwen2", "qwen3"});
  const std::int64_t kvHeads = dice.from(1, 3), heads = kvHeads * dice.from(1, 4), headSize = 2 * dice.from(2, 5);
  std::string text = "{\"model_type\": \"" + family + "\"" + field("vocab_size", dice.from(9, 70));
  const std::string tied = dice.coin() ? "true" : "false";
  if (family == "gpt2") {
    text += field("n_embd", heads * headSize) + field("n_layer", dice.from(1, 6)) + field("n_head", heads) +
            field("n_inner", dice.from(9, 40)) + field("n_positions", dice.from(48, 60));
  } else {
    text += field("hidden_size", dice.from(5, 40)) + field("num_hidden_layers", dice.from(1, 6)) +
            field("num_attention_heads", heads) + field("num_key_value_heads", kvHeads) + field("head_dim", headSize) +
            field("intermediate_size", dice.from(9, 40)) + field("max_position_embeddings", 64);
    if (family == "mistral") text += field("sliding_window", dice.from(1, 12));
  }
  return model::parseConfiguration(text + ", \"initializer_range\": 0.2, \"tie_word_embeddings\": " + tied + "}",
                                   "of the test");
}

// Rows of packed documents; some tokens are no targets.
data::Batch anyBatch(Dice& dice, std::int64_t rows, std::int64_t length, std::int64_t vocabularySize) {
  data::Batch batch(rows, length);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int32_t start = 0;
    for (std::int64_t t = 0; t < length; ++t) {
      const auto at = static_cast<std::size_t>(row * length + t);
      if (dice.from(0, 7) == 0) start = static_cast<std::int32_t>(t);
      batch.tokens[at] = static_cast<std::int32_t>(dice.from(0, vocabularySize - 1));
      batch.documentStart[at] = start;
      batch.positions[at] = static_cast<std::int32_t>(t) - start;
      batch.targets[at] =
          dice.from(0, 5) == 0 ? data::noTarget : static_cast<std::int32_t>(dice.from(0, vocabularySize - 1));
      batch.targetCount += batch.targets[at] != data::noTarget ? 1 : 0;
    }
  }
  return batch;
}

data::Batch rowsOf(const data::Batch& all, std::int64_t first, std::int64_t rows) {
  data::Batch part(rows, all.sequenceLength);
  const auto begin = first * all.sequenceLength, count = rows * all.sequenceLength;
  const auto copy = [&](const std::vector<std::int32_t>& from, std::vector<std::int32_t>& to) {
    to.assign(from.begin() + begin, from.begin() + begin + count);
  };
  copy(all.tokens, part.tokens);
  copy(all.targets, part.targets);
  copy(all.documentStart, part.documentStart);
  copy(all.positions, part.positions);
  part.targetCount = std::count_if(part.targets.begin(), part.targets.end(), [](auto t) { return t >= 0; });
  return part;
}

// A training step of a model on a grid, with what is needed around it.
struct GridRun {
  GridRun(const model::Configuration& model_, const TrainOptions& options_, comm::Communicator& ranks_)
      : model(model_), options(options_), ranks(ranks_) {
    const Grid grid = gridOf(options, ranks.size());
    shape = shareOut(options, grid);
    step = std::make_unique<TrainingStep>(model, options, shape, ranks, cpu.device());
  }

  StepResult train(const data::Batch& batch, std::int64_t number) {
    const std::int64_t first = step->groups().own().data * shape.rowsPerRank;
    return step->run(rowsOf(batch, first, shape.rowsPerRank), number, 1e-2, 0);
  }

  // A tensor for each parameter, whole, on all ranks: what `valuesOf` has of the runs that each rank speaks for.
  template <class Values>
  std::map<std::string, std::vector<float>> collect(Values&& valuesOf) {
    std::map<std::string, std::vector<float>> whole;
    const graph::Program program = lossProgram(model, 1, 1, base::DType::f32);
    for (const graph::TensorId id : program.ofRole(graph::Role::parameter)) {
      whole[program.tensor(id).name].resize(static_cast<std::size_t>(program.tensor(id).shape.count()));
    }
    const auto& parameters = step->parameters().layout().parameters();
    for (const sharding::OwnedRun& run : step->optimizer().countedRuns()) {
      const auto& parameter = parameters[static_cast<std::size_t>(run.parameter)];
      const float* values = valuesOf(run);
      for (const sharding::Strip& strip : parameter.part.strips(run.begin, run.count)) {
        for (std::int64_t i = 0; i < strip.repeats * strip.count; ++i) {
          const std::int64_t at = strip.wholeBegin + i / strip.count * strip.stride + i % strip.count;
          whole[parameter.name][static_cast<std::size_t>(at)] += values[strip.partBegin - run.begin + i];
        }
      }
    }
    for (auto& [name, values] : whole) ranks.allReduce({values.data(), base::DType::f32, std::ssize(values)});
    return whole;
  }

  std::map<std::string, std::vector<float>> gradients() {
    return collect([&](const sharding::OwnedRun& run) { return step->parameters().gradientOf(run); });
  }

  model::Configuration model;
  TrainOptions options;
  comm::Communicator& ranks;
  BatchShape shape;
  CpuDevice cpu;
  std::unique_ptr<TrainingStep> step;
};

double norm(const std::vector<float>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> differences(a.size());
  std::transform(a.begin(), a.end(), b.begin(), differences.begin(), std::minus<>());
  return norm(differences);
}

// On the grid of the options: what one rank has of the same rows, the first rank compares.
void compareWithOneRank(comm::Communicator& group, const model::Configuration& model, TrainOptions options,
                        std::uint64_t seed, Dice& dice) {
  const std::int64_t rows = options.batchTokens / options.sequenceLength;
  const data::Batch batch = anyBatch(dice, rows, options.sequenceLength, model.vocabularySize);

  GridRun split(model, options, group);
  initialise(model, seed, split.step->parameters(), split.step->optimizer(), split.cpu.device());
  const StepResult first = split.train(batch, 1);
  const auto gradients = split.gradients();
  const StepResult second = split.train(batch, 2);
  if (group.rank() != 0) return;

  const auto alone = comm::makeSingleProcess();
  options.grid = Grid{};
  GridRun whole(model, options, *alone);
  initialise(model, seed, whole.step->parameters(), whole.step->optimizer(), whole.cpu.device());
  const StepResult expected = whole.train(batch, 1);
  const auto expectedGradients = whole.gradients();
  const StepResult expectedSecond = whole.train(batch, 2);

  SCOPED_TRACE("case " + std::to_string(seed) + ": " + split.options.grid->text() + ", buckets of " +
               std::to_string(options.bucketElements) + " " + model.json + ", " + std::to_string(rows) + " rows of " +
               std::to_string(options.sequenceLength));
  EXPECT_EQ(first.targets, expected.targets);
  EXPECT_NEAR(first.loss, expected.loss, 1e-5 * expected.loss);
  EXPECT_NEAR(first.gradientNorm, expected.gradientNorm, 1e-5 * expected.gradientNorm);
  EXPECT_NEAR(second.loss, expectedSecond.loss, 1e-3 * expectedSecond.loss) << "after an update";
  ASSERT_EQ(gradients.size(), expectedGradients.size());
  for (const auto& [name, values] : expectedGradients) {
    // Rounding is relative to what was added up, which for some parameters cancels to much less than for others.
    EXPECT_LE(distance(gradients.at(name), values), 1e-5 * norm(values) + 1e-6 * expected.gradientNorm) << name;
  }
}

void compareAnyWithOneRank(comm::Communicator& group, std::uint64_t seed) {
  Dice dice(seed);
  const model::Configuration model = anyModel(dice);
  TrainOptions options;
  options.sequenceLength = dice.oneOf<std::int64_t>({24, 48, 32, dice.from(2, 32)});
  const std::vector<Grid> grids = sharding::fittingGrids(group.size(), model, options.sequenceLength);
  options.grid = dice.oneOf(grids);
  options.grid->zero = static_cast<int>(dice.from(0, 3));
  const int pipeline = options.grid->pipeline;
  if (pipeline > 1) options.grid->virtualStages = static_cast<int>(dice.from(1, model.layers / pipeline));
  const std::int64_t microBatches = options.grid->microBatchUnit() * dice.from(1, 3), microBatch = dice.from(1, 2);
  const std::int64_t rows = options.grid->data * microBatches * microBatch;
  options.batchTokens = rows * options.sequenceLength;
  options.microBatch = microBatch;
  options.recompute =
      dice.oneOf<graph::Recompute>({graph::Recompute::nothing, graph::Recompute::selective, graph::Recompute::full});
  options.clipNorm = 0;
  options.bucketElements = dice.oneOf<std::int64_t>({1, dice.from(16, 4000), 1 << 20});
  compareWithOneRank(group, model, options, seed, dice);
}

// Cuts the world into groups by a random walk; this rank's group, and its number.
std::unique_ptr<comm::Communicator> anyGroup(Dice& dice, int& groups, int& own) {
  const int ranks = test::world().size();
  groups = 0;
  for (int begin = 0; begin < ranks;) {
    const int size = static_cast<int>(dice.from(1, ranks - begin));
    if (test::world().rank() >= begin && test::world().rank() < begin + size) own = groups;
    ++groups;
    begin += size;
  }
  return test::world().split(own, test::world().rank());
}

TEST(AnyGrid, givesTheLossesAndGradientsOfOneRank) {
  constexpr std::uint64_t cases = 220;
  Dice dice(1);
  for (std::uint64_t done = 0; done < cases;) {
    int groups = 0, own = 0;
    const auto group = anyGroup(dice, groups, own);
    compareAnyWithOneRank(*group, 1000 + done + static_cast<std::uint64_t>(own));
    done += static_cast<std::uint64_t>(groups);
    if (HasFatalFailure()) return;
  }
}

// Every number of runs of layers with other axes beside it, and a tied embedding, which the first and the last have.
TEST(AnyGrid, interleavedStagesGiveTheLossesAndGradientsOfOneRank) {
  const std::vector<Grid> grids = {{.pipeline = 2, .virtualStages = 2},
                                   {.pipeline = 2, .virtualStages = 3},
                                   {.pipeline = 3, .virtualStages = 2},
                                   {.pipeline = 3, .virtualStages = 3},
                                   {.pipeline = 4, .virtualStages = 2},
                                   {.pipeline = 2, .tensor = 2, .virtualStages = 2},
                                   {.pipeline = 2, .data = 2, .virtualStages = 2},
                                   {.pipeline = 2, .data = 2, .zero = 0, .virtualStages = 2},
                                   {.pipeline = 2, .data = 2, .zero = 2, .virtualStages = 2},
                                   {.pipeline = 2, .data = 2, .zero = 3, .virtualStages = 2},
                                   {.pipeline = 2, .context = 2, .tensor = 2, .virtualStages = 2}};
  std::uint64_t seed = 3000;
  for (const Grid& grid : grids) {
    for (const char* tied : {"true", "false"}) {
      const model::Configuration model = model::parseConfiguration(
          R"({"model_type": "qwen3", "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 9,
          "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 23,
          "max_position_embeddings": 32, "initializer_range": 0.2, "tie_word_embeddings": )" +
              std::string(tied) + "}",
          "of the test");
      ++seed;
      const bool joins = test::world().rank() < grid.ranks();
      const auto group = test::world().split(joins ? 0 : 1, test::world().rank());
      if (!joins) continue;
      Dice dice(seed);
      TrainOptions options;
      options.sequenceLength = 16;
      options.grid = grid;
      options.microBatch = 1;
      options.batchTokens = 16 * grid.data * 3 * grid.pipeline;
      options.clipNorm = 0;
      options.bucketElements = 1000;
      compareWithOneRank(*group, model, options, seed, dice);
    }
  }
}

// A model that decodes, with initial values, on the ranks of a grid.
struct DecodingRun {
  DecodingRun(const model::Configuration& model_, const Grid& grid, comm::Communicator& ranks, std::uint64_t seed)
      : model(model_), groups(ranks, cpu.device(), grid) {
    if (grid.tensor * grid.pipeline > 1) split.emplace(groups.host(), groups.device());
    const auto share = sharding::DecodingSplit(model, grid, groups.own(), false).parameters(base::DType::f32);
    store = std::make_unique<runtime::ParameterStore>(
        sharding::layoutOf(share.program, 1, sharding::FlatLayout::Ownership::anywhere, share.parts), *cpu.backend,
        *cpu.stream, base::DType::f32, runtime::ParameterStore::Gradients::none);
    for (const sharding::FlatParameter& parameter : store->layout().parameters()) {
      float* const values = static_cast<float*>(store->weightAt(parameter.offset));
      for (const sharding::Strip& strip : parameter.part.strips(0, parameter.count)) {
        for (std::int64_t i = 0; i < strip.repeats; ++i) {
          model::initialise(
              model, parameter.name, seed, strip.wholeBegin + i * strip.stride,
              std::span(values + strip.partBegin + i * strip.count, static_cast<std::size_t>(strip.count)));
        }
      }
    }
  }

  runtime::DecodingRanks* ranks() { return split ? &*split : nullptr; }

  // Three texts at once; the caller ends the last of them, if it is the first rank.
  std::vector<runtime::Generation> write() {
    runtime::Generator generator(model, *store, 3, 40, *cpu.backend, *cpu.stream, cpu.arena, ranks());
    std::vector<runtime::GenerationRequest> requests;
    for (const std::int32_t length : {1, 19, 6}) {
      requests.push_back({.prompt = {}, .maxTokens = 7, .sequence = static_cast<std::uint64_t>(length)});
      for (std::int32_t i = 0; i < length; ++i) {
        requests.back().prompt.push_back((3 * i + length) % static_cast<std::int32_t>(model.vocabularySize));
      }
    }
    int seen = 0;
    return generator.run(requests, {.temperature = 0}, [&](std::int64_t request, std::int32_t) {
      return request < 2 || ++seen < 4 || (split && !split->isFirst());
    });
  }

  // Log likelihoods of continuations of two groups; zeros where this rank has none.
  std::vector<double> score() {
    runtime::ContinuationScorer scorer(model, *store, 2, 40, *cpu.backend, *cpu.stream, cpu.arena, ranks());
    const auto token = [&](std::int32_t i) { return i % static_cast<std::int32_t>(model.vocabularySize); };
    std::vector<runtime::ContinuationGroup> texts(2);
    for (std::int32_t i = 0; i < 4; ++i) {
      runtime::ContinuationRequest request{.tokens = {token(1), token(5)}, .asked = 2};
      for (std::int32_t more = 0; more <= 9 * i; ++more) request.tokens.push_back(token(7 * i + more));
      texts[static_cast<std::size_t>(i % 2)].push_back(std::move(request));
    }
    std::vector<double> values;
    for (const auto& group : scorer.run(texts, runtime::ContinuationScorer::sharedPrefix(texts))) {
      for (const runtime::ContinuationScore& score : group) {
        values.push_back(!split || split->isChooser() ? score.logLikelihood : 0);
      }
    }
    if (split) split->copy().allReduce({values.data(), base::DType::f64, std::ssize(values)});
    return values;
  }

  model::Configuration model;
  CpuDevice cpu;
  RankGroups groups;
  std::optional<runtime::DecodingRanks> split;
  std::unique_ptr<runtime::ParameterStore> store;
};

// A model of the same kind and a grid that can decode it.
std::pair<model::Configuration, Grid> anyDecoding(Dice& dice, int ranks) {
  const model::Configuration model = anyModel(dice);
  std::vector<Grid> grids = sharding::fittingGrids(ranks, model, 0);
  std::erase_if(grids, [](const Grid& grid) { return grid.context > 1; });
  return {model, dice.oneOf(grids)};
}

TEST(AnyGrid, decodesAsOneRank) {
  constexpr std::uint64_t cases = 60;
  Dice dice(3);
  for (std::uint64_t done = 0; done < cases;) {
    int groups = 0, own = 0;
    const auto group = anyGroup(dice, groups, own);
    const std::uint64_t seed = 2000 + done + static_cast<std::uint64_t>(own);
    Dice ownDice(seed);
    const auto [model, grid] = anyDecoding(ownDice, group->size());
    SCOPED_TRACE("case " + std::to_string(seed) + ": " + grid.text() + " " + model.json);
    DecodingRun split(model, grid, *group, seed);
    const std::vector<runtime::Generation> texts = split.write();
    const std::vector<double> scores = split.score();
    const auto alone = comm::makeSingleProcess();
    DecodingRun whole(model, {}, *alone, seed);
    const std::vector<runtime::Generation> expected = whole.write();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(texts[i].tokens, expected[i].tokens) << i;
      EXPECT_EQ(texts[i].stopReason, expected[i].stopReason) << i;
    }
    EXPECT_EQ(expected.back().stopReason, "stopped");
    const std::vector<double> expectedScores = whole.score();
    for (std::size_t i = 0; i < expectedScores.size(); ++i) {
      EXPECT_NEAR(scores[i] / expectedScores[i], 1, 1e-4) << i;
    }
    done += static_cast<std::uint64_t>(groups);
  }
}

// Only the last stage finds out.
TEST(AnyGrid, weightsThatAreNoNumbersEndDecodingOnAllRanks) {
  const model::Configuration model = model::parseConfiguration(
      R"({"model_type": "llama", "vocab_size": 33, "hidden_size": 16, "num_hidden_layers": 4,
      "num_attention_heads": 4, "intermediate_size": 12, "max_position_embeddings": 64})",
      "of the test");
  for (const Grid& grid : {Grid{.pipeline = 4, .tensor = 2}, Grid{.pipeline = 2, .data = 2, .tensor = 2}}) {
    ASSERT_EQ(grid.ranks(), test::world().size());
    DecodingRun run(model, grid, test::world(), 1);
    const std::int64_t norm = run.store->layout().indexOf("final_norm.weight");
    if (norm >= 0) {
      const auto& parameter = run.store->layout().parameters()[static_cast<std::size_t>(norm)];
      static_cast<float*>(run.store->weightAt(parameter.offset))[0] = NAN;
    }
    data::expectError(base::ErrorKind::numeric, {"logits"}, [&] { run.write(); });
    data::expectError(base::ErrorKind::numeric, {"logits"}, [&] {
      comm::agreeOn(test::world(), [&] {
        runtime::ContinuationScorer scorer(model, *run.store, 1, 20, *run.cpu.backend, *run.cpu.stream, run.cpu.arena,
                                           run.ranks());
        const std::vector<runtime::ContinuationGroup> texts = {{{.tokens = {1, 2, 3}, .asked = 1}}};
        scorer.run(texts, 0);
      });
    });
  }
}

// Every tensor of a checkpoint, whole.
std::map<std::string, std::vector<float>> contentOf(const checkpoint::Reader& reader) {
  std::map<std::string, std::vector<float>> content;
  for (const checkpoint::Reader::Entry& entry : reader.tensors()) {
    std::vector<float>& values = content[entry.name];
    values.resize(static_cast<std::size_t>(entry.shape.count()));
    reader.read(entry.name, entry.type, entry.shape, 0, entry.shape.count(), values.data());
  }
  return content;
}

// In memory where there is such a folder: what is tested is no disk.
std::filesystem::path sharedFolder() {
  std::string name;
  if (test::world().rank() == 0) {
    const std::filesystem::path memory = "/dev/shm";
    const auto parent = std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "tandem-grids-XXXXXX").string();
    name = ::mkdtemp(pattern.data());
  }
  return comm::broadcastText(test::world(), name, 0);
}

TEST(Checkpoints, movedThroughAllGridsReturnBitForBit) {
  Dice dice(7);
  const model::Configuration model = model::parseConfiguration(
      R"({"model_type": "qwen3", "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 6,
      "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 23, "max_position_embeddings": 32,
      "tie_word_embeddings": true, "attention_bias": false})",
      "of the test");
  std::vector<Grid> grids;
  for (int ranks = 1; ranks <= test::world().size(); ++ranks) {
    for (const Grid& grid : sharding::fittingGrids(ranks, model, 16)) {
      if (grid.context > 1 && ranks != test::world().size()) continue;
      grids.push_back(grid);
      grids.back().zero = static_cast<int>(dice.from(0, 3));
      if (grid.pipeline != 2) continue;
      grids.push_back(grids.back());
      grids.back().virtualStages = 2;
    }
  }
  ASSERT_GE(grids.size(), 12u);
  grids.push_back(grids.front());
  const std::filesystem::path folder = sharedFolder();
  std::map<std::string, std::vector<float>> expected;
  for (std::size_t hop = 0; hop < grids.size(); ++hop) {
    SCOPED_TRACE(grids[hop].text());
    const bool joins = test::world().rank() < grids[hop].ranks();
    const auto group = test::world().split(joins ? 0 : 1, test::world().rank());
    if (joins) {
      TrainOptions options;
      options.sequenceLength = 16;
      options.grid = grids[hop];
      options.batchTokens = 16 * grids[hop].data * grids[hop].microBatchUnit();
      GridRun run(model, options, *group);
      if (hop == 0) {
        initialise(model, 5, run.step->parameters(), run.step->optimizer(), run.cpu.device());
        run.train(anyBatch(dice, 1, 16, model.vocabularySize), 1);
      } else {
        const checkpoint::Reader reader(*group, folder / std::to_string(hop - 1));
        restore(reader, run.step->parameters(), run.step->optimizer(), *group, run.cpu.device());
      }
      checkpoint::Writer writer(*group, folder / std::to_string(hop), 1);
      writer.save({.step = 1, .tokenizer = "", .configuration = "{}", .options = "{}", .progress = "{}"},
                  localTensors(run.step->parameters(), run.step->optimizer()));
      writer.finish();
      const auto content = contentOf(checkpoint::Reader(*group, folder / std::to_string(hop)));
      if (hop == 0) expected = content;
      if (group->rank() == 0) {
        EXPECT_EQ(content, expected);
      }
    }
    test::world().barrier();
  }
  if (test::world().rank() == 0) std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem::train
