// The families as programs: names and numbers of parameters, and where training begins.

#include "common/model/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace tandem::model {
namespace {

std::map<std::string, base::Shape> parameters(const graph::Program& program) {
  std::map<std::string, base::Shape> result;
  for (const graph::TensorId id : program.ofRole(graph::Role::parameter)) {
    result.emplace(program.tensor(id).name, program.tensor(id).shape);
  }
  return result;
}

Configuration parse(const std::string& json) { return parseConfiguration(json, "of the test"); }

std::int64_t parameterCount(const std::string& json) {
  return buildLoss(parse(json), 1, 8, base::DType::f32).parameterCount();
}

const std::string smallGpt2 = R"({"model_type": "gpt2", "vocab_size": 100, "n_embd": 48, "n_layer": 2, "n_head": 4,
  "n_positions": 64})";
const std::string smallQwen3 = R"({"model_type": "qwen3", "vocab_size": 100, "hidden_size": 48, "num_hidden_layers": 2,
  "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
  "max_position_embeddings": 64})";

TEST(Transformer, gpt2HasTheParametersOfItsDefinition) {
  const auto all = parameters(buildLoss(parse(smallGpt2), 2, 8, base::DType::f32));
  EXPECT_EQ(all.at("embedding.weight"), (base::Shape{100, 48}));
  EXPECT_EQ(all.at("embedding.position_weight"), (base::Shape{64, 48}));
  EXPECT_EQ(all.at("layers.1.attention_norm.weight"), (base::Shape{48}));
  EXPECT_EQ(all.at("layers.1.attention_norm.bias"), (base::Shape{48}));
  EXPECT_EQ(all.at("layers.1.attention.qkv.weight"), (base::Shape{144, 48}));
  EXPECT_EQ(all.at("layers.1.attention.qkv.bias"), (base::Shape{144}));
  EXPECT_EQ(all.at("layers.1.attention.output.weight"), (base::Shape{48, 48}));
  EXPECT_EQ(all.at("layers.1.mlp.up.weight"), (base::Shape{192, 48}));
  EXPECT_EQ(all.at("layers.1.mlp.down.weight"), (base::Shape{48, 192}));
  EXPECT_EQ(all.at("final_norm.bias"), (base::Shape{48}));
  EXPECT_FALSE(all.contains("head.weight")) << "the embedding serves as the head";
  EXPECT_EQ(all.size(), 2u + 2 * 12 + 2);
}

TEST(Transformer, qwen3HasTheParametersOfItsDefinition) {
  const auto all = parameters(buildLoss(parse(smallQwen3), 2, 8, base::DType::f32));
  EXPECT_EQ(all.at("layers.0.attention.qkv.weight"), (base::Shape{6 * 16 + 2 * 2 * 16, 48}));
  EXPECT_EQ(all.at("layers.0.attention.query_norm.weight"), (base::Shape{16}));
  EXPECT_EQ(all.at("layers.0.attention.key_norm.weight"), (base::Shape{16}));
  EXPECT_EQ(all.at("layers.0.attention.output.weight"), (base::Shape{48, 96}));
  EXPECT_EQ(all.at("layers.0.mlp.gate_up.weight"), (base::Shape{192, 48}));
  EXPECT_EQ(all.at("layers.0.mlp.down.weight"), (base::Shape{48, 96}));
  EXPECT_EQ(all.at("head.weight"), (base::Shape{100, 48}));
  EXPECT_FALSE(all.contains("embedding.position_weight"));
  EXPECT_FALSE(all.contains("layers.0.attention.qkv.bias"));
}

TEST(Transformer, publishedModelsHaveTheirPublishedNumbersOfParameters) {
  EXPECT_EQ(parameterCount(R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_positions": 1024})"),
            124'439'808);
  EXPECT_EQ(parameterCount(R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "tie_word_embeddings": true})"),
            1'235'814'400);  // Llama 3.2 1B
  EXPECT_EQ(parameterCount(R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "tie_word_embeddings": true})"),
            494'032'768);  // Qwen2.5 0.5B
  EXPECT_EQ(parameterCount(R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "tie_word_embeddings": true})"),
            596'049'920);  // Qwen3 0.6B
  EXPECT_EQ(parameterCount(R"({"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "sliding_window": 4096})"),
            7'241'732'096);  // Mistral 7B
}

TEST(Transformer, everyProgramOfAModelNamesTheSameParameters) {
  for (const std::string& json : {smallGpt2, smallQwen3}) {
    const Configuration c = parse(json);
    const auto whole = parameters(buildLoss(c, 2, 8, base::DType::bf16));
    EXPECT_EQ(parameters(buildLogits(c, 1, 4, base::DType::bf16)), whole);
    auto decoding = parameters(buildDecode(c, 2, 1, 32, base::DType::bf16));
    decoding.merge(parameters(buildHead(c, 2, base::DType::bf16)));
    EXPECT_EQ(decoding, whole);
  }
}

TEST(Transformer, aDecodeProgramHasACacheForEachLayerOfKeyValueHeadsOnly) {
  const graph::Program program = buildDecode(parse(smallQwen3), 3, 1, 32, base::DType::f32);
  EXPECT_EQ(program.ofRole(graph::Role::state).size(), 4u);
  EXPECT_EQ(program.tensor(program.find("layers.1.key_cache")).shape, (base::Shape{3, 2, 32, 16}));
}

class Initialisation : public testing::Test {
 protected:
  static std::vector<float> values(const std::string& name, std::int64_t count, std::uint64_t seed = 1,
                                   std::int64_t begin = 0) {
    std::vector<float> result(static_cast<std::size_t>(count));
    initialise(parse(smallGpt2), name, seed, begin, result);
    return result;
  }
  static double deviation(const std::vector<float>& values) {
    double square = 0;
    for (const float value : values) square += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(square / static_cast<double>(values.size()));
  }
};

TEST_F(Initialisation, matricesAreNormalWithTheConfiguredDeviation) {
  const std::vector<float> all = values("layers.0.attention.qkv.weight", 100000);
  double sum = 0;
  for (const float value : all) sum += static_cast<double>(value);
  EXPECT_NEAR(sum / 100000, 0, 4 * 0.02 / std::sqrt(100000));
  EXPECT_NEAR(deviation(all), 0.02, 0.0002);
  const auto beyondTwo = std::count_if(all.begin(), all.end(), [](float v) { return std::abs(v) > 0.04f; });
  EXPECT_NEAR(static_cast<double>(beyondTwo) / 100000, 0.0455, 0.003) << "the tails of a normal distribution";
}

TEST_F(Initialisation, projectionsIntoTheStreamAreSmallerByTheNumberOfLayers) {
  for (const char* name : {"layers.1.attention.output.weight", "layers.1.mlp.down.weight"}) {
    EXPECT_NEAR(deviation(values(name, 100000)), 0.02 / std::sqrt(2.0 * 2), 0.0001) << name;
  }
  for (const char* name : {"layers.1.mlp.up.weight", "embedding.weight", "embedding.position_weight", "head.weight"}) {
    EXPECT_NEAR(deviation(values(name, 100000)), 0.02, 0.0002) << name;
  }
}

TEST_F(Initialisation, normsBeginAsOnesAndBiasesAsZeros) {
  for (const char* name : {"layers.0.attention_norm.weight", "layers.0.attention.query_norm.weight",
                           "layers.0.mlp_norm.weight", "final_norm.weight"}) {
    EXPECT_EQ(values(name, 5), std::vector<float>(5, 1.0f)) << name;
  }
  for (const char* name : {"layers.0.attention.qkv.bias", "layers.0.mlp_norm.bias", "final_norm.bias"}) {
    EXPECT_EQ(values(name, 5), std::vector<float>(5, 0.0f)) << name;
  }
}

TEST_F(Initialisation, everySliceIsThatOfTheWhole) {
  const std::vector<float> all = values("embedding.weight", 1000);
  for (const std::int64_t begin : {0, 1, 7, 500, 999}) {
    for (const std::int64_t count : {1, 2, 5, 300}) {
      if (begin + count > 1000) continue;
      const std::vector<float> slice = values("embedding.weight", count, 1, begin);
      EXPECT_TRUE(std::equal(slice.begin(), slice.end(), all.begin() + begin)) << begin << " " << count;
    }
  }
}

TEST_F(Initialisation, otherParametersAndSeedsGetOtherNumbers) {
  const std::vector<float> one = values("layers.0.mlp.up.weight", 100);
  EXPECT_NE(one, values("layers.1.mlp.up.weight", 100));
  EXPECT_NE(one, values("layers.0.mlp.up.weight", 100, 2));
  EXPECT_EQ(one, values("layers.0.mlp.up.weight", 100));
}

}  // namespace
}  // namespace tandem::model
