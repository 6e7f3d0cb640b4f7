// Models whose matrices are held quantised: by wish while they are read, or because the checkpoint has them so.

#include "common/train/quantised_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "common/model/transformer.h"
#include "common/runtime/continuation_scorer.h"
#include "common/sharding/decoding.h"
#include "common/train/loss_evaluator.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/train/small_world.h"

namespace tandem::train {
namespace {

using base::DType;
using base::ErrorKind;
using checkpoint::LocalTensor;
using checkpoint::QuantisedFormat;
using enum checkpoint::QuantisedFormat;

using Weights = std::map<std::string, std::vector<float>>;

class QuantisedWeights : public testing::Test {
 protected:
  QuantisedWeights() : QuantisedWeights(tinyModel()) {}
  explicit QuantisedWeights(const model::Configuration& model) : model_(model) {
    for (const graph::TensorId id : program_.ofRole(graph::Role::parameter)) {
      const graph::Tensor& parameter = program_.tensor(id);
      std::vector<float>& values = weights_[parameter.name];
      values.resize(static_cast<std::size_t>(parameter.shape.count()));
      model::initialise(model_, parameter.name, 3, 0, values);
      for (float& value : values) value *= 4;  // an answer that depends on what is read
    }
  }

  const graph::Tensor& parameter(const std::string& name) const { return program_.tensor(program_.find(name)); }

  // A checkpoint of this rank alone, quantised to a format or not.
  std::filesystem::path save(std::optional<QuantisedFormat> format) {
    std::vector<LocalTensor> tensors;
    std::vector<checkpoint::QuantisedRows> rows;
    rows.reserve(weights_.size());  // the pieces point into it
    for (const auto& [name, values] : weights_) {
      const base::Shape& shape = parameter(name).shape;
      const auto own = format ? checkpoint::formatOfParameter(name, shape, *format) : std::nullopt;
      if (!own) {
        add(tensors, name, DType::f32, shape, values.data());
        continue;
      }
      rows.push_back(checkpoint::quantiseRows(*own, values, shape[1], {name, 0}));
      const auto datasets = checkpoint::quantisedDatasets(*own, shape[0], shape[1]);
      add(tensors, checkpoint::codesName(name), datasets.codesType, datasets.codes, rows.back().codes.data());
      add(tensors, checkpoint::scalesName(name), datasets.scalesType, datasets.scales, rows.back().scales.data());
    }
    const std::filesystem::path run = folder_.path() / (format ? checkpoint::name(*format) : "numbers");
    std::filesystem::create_directories(run);
    checkpoint::Writer writer(*alone_, run, 1);
    writer.save({.step = 1, .configuration = model_.json}, tensors);
    writer.finish();
    return run;
  }

  static void add(std::vector<LocalTensor>& tensors, const std::string& name, DType type, const base::Shape& shape,
                  const void* data) {
    tensors.push_back({.name = "model/" + name,
                       .type = type,
                       .shape = shape,
                       .pieces = {{.begin = 0, .count = shape.count(), .data = data}}});
  }

  std::unique_ptr<runtime::ParameterStore> load(const std::filesystem::path& run,
                                                std::optional<QuantisedFormat> format) {
    return loadForInference(*checkpoint::openModel(*alone_, run), program_, DType::f32, format, cpu_.device());
  }

  double loss(const std::filesystem::path& run, std::optional<QuantisedFormat> format) {
    const data::Dataset dataset(
        makeTextDataset(folder_, {"A text that is a little longer than a window of sixteen tokens.", "b"}));
    const auto parameters = load(run, format);
    return LossEvaluator(model_, *parameters, 2, 16, cpu_.device()).evaluate(dataset, false, 0, *alone_).loss;
  }

  data::TemporaryFolder folder_;
  CpuDevice cpu_;
  std::unique_ptr<comm::Communicator> alone_ = comm::makeSingleProcess();
  model::Configuration model_;
  graph::Program program_ = model::buildLogits(model_, 1, 1, DType::f32);
  Weights weights_;
};

TEST_F(QuantisedWeights, giveTheLossOfTheNumbersThatTheyStandFor) {
  const std::filesystem::path numbers = save(std::nullopt);
  const double exact = loss(numbers, std::nullopt);
  for (const QuantisedFormat format : {int8, int4}) {
    const double quantised = loss(numbers, format);
    EXPECT_NE(quantised, exact);
    for (auto& [name, values] : weights_) {
      const base::Shape& shape = parameter(name).shape;
      const auto own = checkpoint::formatOfParameter(name, shape, format);
      if (!own) continue;
      const auto rows = checkpoint::quantiseRows(*own, values, shape[1], {name, 0});
      checkpoint::dequantiseRows(*own, rows, shape[1], values, {name, 0});
    }
    // The rounding of activations is what is left.
    EXPECT_NEAR(quantised, loss(save(std::nullopt), std::nullopt), 2e-3 * exact) << checkpoint::name(format);
  }
}

TEST_F(QuantisedWeights, asTheCheckpointHoldsThemAreThoseQuantisedWhileReading) {
  const std::filesystem::path numbers = save(std::nullopt);
  for (const QuantisedFormat format : {int8, int4}) {
    const std::filesystem::path stored = save(format);
    const double wanted = loss(numbers, format);
    EXPECT_EQ(loss(stored, std::nullopt), wanted);
    EXPECT_EQ(loss(stored, format), wanted);
  }
}

// Heads and columns of the MLP that can be cut between groups of inputs for two and three ranks.
class SplitQuantisedWeights : public QuantisedWeights {
 protected:
  SplitQuantisedWeights()
      : QuantisedWeights(model::parseConfiguration(R"({"model_type": "llama", "vocab_size": 261, "hidden_size": 40,
          "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32,
          "intermediate_size": 100, "max_position_embeddings": 64, "tie_word_embeddings": true})",
                                                   "of the test")) {}

  // Log likelihoods of some texts, on the ranks of a grid.
  std::vector<double> score(const std::filesystem::path& run, std::optional<QuantisedFormat> format,
                            const sharding::Grid& grid, comm::Communicator& ranks) {
    RankGroups groups(ranks, cpu_.device(), grid);
    std::optional<runtime::DecodingRanks> split;
    if (grid.ranks() > 1) split.emplace(groups.host(), groups.device());
    const auto share = sharding::DecodingSplit(model_, grid, groups.own(), true).parameters(DType::f32);
    const auto parameters = loadForInference(*checkpoint::openModel(*alone_, run), share.program, DType::f32, format,
                                             cpu_.device(), share.parts);
    runtime::ContinuationScorer scorer(model_, *parameters, 1, 20, *cpu_.backend, *cpu_.stream, cpu_.arena,
                                       split ? &*split : nullptr);
    const std::vector<runtime::ContinuationGroup> texts = {{{.tokens = {1, 2, 3}, .asked = 2}},
                                                           {{.tokens = {260, 9, 77, 8}, .asked = 3}}};
    std::vector<double> values;
    for (const auto& group : scorer.run(texts, 0)) {
      for (const auto& one : group) values.push_back(!split || split->isChooser() ? one.logLikelihood : 0);
    }
    if (split) split->copy().allReduce({values.data(), DType::f64, std::ssize(values)});
    return values;
  }
};

TEST_F(SplitQuantisedWeights, giveTheLikelihoodsOfOneRank) {
  const std::filesystem::path numbers = save(std::nullopt);
  comm::Communicator& world = test::world();
  for (const QuantisedFormat format : {int8, int4}) {
    const std::filesystem::path stored = save(format);
    const std::vector<double> whole = score(numbers, format, {}, *alone_);
    for (const sharding::Grid& grid : {sharding::Grid{.tensor = world.size()}, {.pipeline = world.size()}}) {
      for (const std::vector<double>& split :
           {score(numbers, format, grid, world), score(stored, std::nullopt, grid, world)}) {
        for (std::size_t i = 0; i < whole.size(); ++i) {
          // Sums in another order round some activation to the next of its 255 steps.
          EXPECT_NEAR(split[i], whole[i], 1e-2 * std::abs(whole[i])) << grid.text() << " " << i;
        }
      }
    }
  }
}

TEST_F(QuantisedWeights, takeAFractionOfTheMemory) {
  const auto whole = load(save(std::nullopt), std::nullopt), eighth = load(save(std::nullopt), int4);
  EXPECT_LT(eighth->layout().count(), whole->layout().count() / 20) << "norms are all that stays";
}

TEST_F(QuantisedWeights, cannotBecomeAnotherFormat) {
  const std::filesystem::path stored = save(int8);
  data::expectError(ErrorKind::usage, {stored.string(), "int8", "--quantize"}, [&] { load(stored, int4); });
}

TEST_F(QuantisedWeights, aModelThatHoldsNoNumberIsRefused) {
  weights_.at("layers.0.mlp.down.weight")[24 + 7] = NAN;
  const std::filesystem::path numbers = save(std::nullopt);
  data::expectError(ErrorKind::badData, {"layers.0.mlp.down.weight", "row 1", "column 7"},
                    [&] { load(numbers, int4); });
}

}  // namespace
}  // namespace tandem::train
