// Hugging Face's config.json as a model: every family, and a message for everything that we do not have.

#include "common/model/configuration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/common/data/expect_error.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::model {
namespace {

using nlohmann::json;

json gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 100}, {"n_embd", 48},
          {"n_layer", 3},         {"n_head", 4},       {"n_positions", 64}};
}

json llama(const std::string& type = "llama") {
  return {{"model_type", type},       {"vocab_size", 100},
          {"hidden_size", 48},        {"num_hidden_layers", 3},
          {"num_attention_heads", 6}, {"num_key_value_heads", 2},
          {"intermediate_size", 96},  {"max_position_embeddings", 64}};
}

json with(json object, const json& changes) {
  object.update(changes);
  return object;
}

Configuration parse(const json& object) { return parseConfiguration(object.dump(), "'test.json'"); }

void refuse(const json& object, std::initializer_list<std::string> words) {
  data::expectError(base::ErrorKind::usage, words, [&] { parse(object); });
  data::expectError(base::ErrorKind::usage, {"'test.json'"}, [&] { parse(object); });
}

TEST(Configuration, gpt2HasLearnedPositionsLayerNormsBiasesAndTiedEmbeddings) {
  const Configuration c = parse(gpt2());
  EXPECT_EQ(c.width, 48);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.kvHeads, 4);
  EXPECT_EQ(c.headSize, 12);
  EXPECT_EQ(c.mlpWidth, 192);
  EXPECT_EQ(c.maximumPositions, 64);
  EXPECT_EQ(c.vocabularySize, 100);
  EXPECT_TRUE(c.learnedPositions && c.qkvBias && c.outputBias && c.mlpBias && c.tiedEmbeddings);
  EXPECT_FALSE(c.queryKeyNorm);
  EXPECT_EQ(c.norm, kernels::NormKind::layer);
  EXPECT_EQ(c.activation, kernels::ActivationKind::geluTanh);
  EXPECT_FLOAT_EQ(c.normEpsilon, 1e-5f);
  EXPECT_FLOAT_EQ(c.initializerRange, 0.02f);
}

TEST(Configuration, gpt2TakesItsOptions) {
  const Configuration c = parse(with(gpt2(), {{"n_inner", 80},
                                              {"activation_function", "gelu"},
                                              {"layer_norm_epsilon", 1e-6},
                                              {"tie_word_embeddings", false},
                                              {"initializer_range", 0.01}}));
  EXPECT_EQ(c.mlpWidth, 80);
  EXPECT_EQ(c.activation, kernels::ActivationKind::geluErf);
  EXPECT_FLOAT_EQ(c.normEpsilon, 1e-6f);
  EXPECT_FALSE(c.tiedEmbeddings);
  EXPECT_FLOAT_EQ(c.initializerRange, 0.01f);
  EXPECT_EQ(parse(with(gpt2(), {{"activation_function", "relu2"}})).activation, kernels::ActivationKind::relu2);
  EXPECT_EQ(parse(with(gpt2(), {{"n_inner", nullptr}})).mlpWidth, 192);
}

TEST(Configuration, llamaHasRotaryPositionsRmsNormsAndGroupedQueries) {
  const Configuration c = parse(llama());
  EXPECT_EQ(c.heads, 6);
  EXPECT_EQ(c.kvHeads, 2);
  EXPECT_EQ(c.headSize, 8);
  EXPECT_EQ(c.mlpWidth, 96);
  EXPECT_EQ(c.norm, kernels::NormKind::rms);
  EXPECT_EQ(c.activation, kernels::ActivationKind::swiglu);
  EXPECT_FALSE(c.learnedPositions || c.qkvBias || c.outputBias || c.mlpBias || c.queryKeyNorm || c.tiedEmbeddings);
  EXPECT_EQ(c.slidingWindow, 0);
  ASSERT_EQ(c.rotaryFrequencies.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(c.rotaryFrequencies[i], static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / 4)));
  }
}

TEST(Configuration, withoutKeyValueHeadsEveryHeadHasItsOwn) {
  json fields = llama();
  fields.erase("num_key_value_heads");
  EXPECT_EQ(parse(fields).kvHeads, 6);
}

TEST(Configuration, llamaTakesItsOptions) {
  const Configuration c = parse(with(llama(), {{"head_dim", 10},
                                               {"attention_bias", true},
                                               {"mlp_bias", true},
                                               {"tie_word_embeddings", true},
                                               {"rms_norm_eps", 1e-4},
                                               {"rope_theta", 500000.0}}));
  EXPECT_EQ(c.headSize, 10);
  EXPECT_TRUE(c.qkvBias && c.outputBias && c.mlpBias && c.tiedEmbeddings);
  EXPECT_FLOAT_EQ(c.normEpsilon, 1e-4f);
  EXPECT_FLOAT_EQ(c.rotaryFrequencies[1], static_cast<float>(std::pow(500000.0, -0.2)));
}

TEST(Configuration, qwen2HasBiasesOnQueriesKeysAndValuesAlone) {
  const Configuration c = parse(llama("qwen2"));
  EXPECT_TRUE(c.qkvBias);
  EXPECT_FALSE(c.outputBias || c.mlpBias || c.queryKeyNorm);
}

TEST(Configuration, qwen3NormsQueriesAndKeys) {
  const Configuration c = parse(llama("qwen3"));
  EXPECT_TRUE(c.queryKeyNorm);
  EXPECT_FALSE(c.qkvBias);
}

TEST(Configuration, aWindowIsUsedByMistralAlwaysAndByQwenWhenItSaysSo) {
  EXPECT_EQ(parse(with(llama("mistral"), {{"sliding_window", 16}})).slidingWindow, 16);
  EXPECT_EQ(parse(with(llama("mistral"), {{"sliding_window", nullptr}})).slidingWindow, 0);
  EXPECT_EQ(parse(with(llama("qwen2"), {{"sliding_window", 16}})).slidingWindow, 0);
  const json used = with(llama("qwen2"), {{"sliding_window", 16}, {"use_sliding_window", true}});
  EXPECT_EQ(parse(used).slidingWindow, 16);
  EXPECT_EQ(parse(with(used, {{"max_window_layers", 0}})).slidingWindow, 16);
  EXPECT_EQ(parse(with(used, {{"max_window_layers", 3}})).slidingWindow, 0) << "no layer has a number that high";
  const json sliding = {"sliding_attention", "sliding_attention", "sliding_attention"};
  const json full = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(parse(with(used, {{"layer_types", sliding}})).slidingWindow, 16);
  EXPECT_EQ(parse(with(used, {{"layer_types", full}})).slidingWindow, 0);
}

TEST(Configuration, aModelWhoseLayersDifferInTheirWindowIsRefused) {
  const json used = with(llama("qwen3"), {{"sliding_window", 16}, {"use_sliding_window", true}});
  refuse(with(used, {{"max_window_layers", 2}}), {"'max_window_layers'", "all layers"});
  refuse(with(used, {{"layer_types", {"full_attention", "sliding_attention", "full_attention"}}}),
         {"'layer_types'", "all"});
  refuse(with(used, {{"layer_types", {"chunked_attention"}}}), {"'layer_types'", "chunked_attention"});
  refuse(with(llama("qwen3"), {{"layer_types", {"sliding_attention", "sliding_attention", "sliding_attention"}}}),
         {"'layer_types'", "sliding_window"});
  refuse(with(used, {{"layer_types", 3}}), {"'layer_types'", "list"});
}

TEST(Configuration, linearScalingDividesAllFrequencies) {
  const Configuration c = parse(with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}));
  EXPECT_FLOAT_EQ(c.rotaryFrequencies[0], 0.25f);
  EXPECT_FLOAT_EQ(c.rotaryFrequencies[2], 0.0025f);
}

// The formula published with Llama 3.1, written out for its three ranges of wavelengths.
TEST(Configuration, llama3ScalingStretchesLongWavelengthsAndKeepsShortOnes) {
  const Configuration c = parse(with(llama(), {{"head_dim", 64},
                                               {"rope_theta", 500000.0},
                                               {"rope_scaling",
                                                {{"rope_type", "llama3"},
                                                 {"factor", 8.0},
                                                 {"low_freq_factor", 1.0},
                                                 {"high_freq_factor", 4.0},
                                                 {"original_max_position_embeddings", 8192}}}}));
  int kept = 0, stretched = 0, blended = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const double frequency = std::pow(500000.0, -static_cast<double>(i) / 32);
    const double wavelength = 2 * M_PI / frequency;
    double expected = frequency / 8;
    if (wavelength < 8192.0 / 4) {
      expected = frequency;
      ++kept;
    } else if (wavelength <= 8192) {
      const double smooth = (8192 / wavelength - 1) / 3;
      expected = (1 - smooth) * frequency / 8 + smooth * frequency;
      ++blended;
    } else {
      ++stretched;
    }
    EXPECT_NEAR(c.rotaryFrequencies[i], expected, 1e-6 * expected) << i;
  }
  EXPECT_GT(kept * stretched * blended, 0) << "all three ranges must be met";
}

TEST(Configuration, ropeParametersOfNewerFilesAreRead) {
  const Configuration c =
      parse(with(llama(), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 100.0}}}}));
  EXPECT_FLOAT_EQ(c.rotaryFrequencies[2], 0.1f);
}

TEST(Configuration, bookkeepingOfOtherProgramsIsIgnored) {
  parse(with(gpt2(), {{"architectures", {"GPT2LMHeadModel"}}, {"resid_pdrop", 0.1}, {"n_ctx", 64}}));
  parse(with(llama(), {{"torch_dtype", "bfloat16"}, {"bos_token_id", 1}, {"use_cache", true}}));
}

TEST(Configuration, aMisspeltFieldIsRefused) {
  refuse(with(llama(), {{"num_hiden_layers", 9}}), {"'num_hiden_layers'", "misspelt"});
  refuse(with(gpt2(), {{"hidden_size", 9}}), {"'hidden_size'", "model_type"});
}

TEST(Configuration, aMissingFieldIsNamed) {
  for (const char* field : {"vocab_size", "n_embd", "n_layer", "n_head", "n_positions"}) {
    json fields = gpt2();
    fields.erase(field);
    refuse(fields, {"'" + std::string(field) + "'", "missing"});
  }
  for (const char* field :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"}) {
    json fields = llama();
    fields.erase(field);
    refuse(fields, {"'" + std::string(field) + "'", "missing"});
  }
}

TEST(Configuration, anUnknownFamilyListsTheKnown) {
  refuse(with(llama(), {{"model_type", "gemma"}}), {"'gemma'", "gpt2, llama, mistral, qwen2 and qwen3"});
  json none = llama();
  none.erase("model_type");
  refuse(none, {"'model_type'"});
}

TEST(Configuration, valuesOfAnotherKindOrOutOfRangeAreRefused) {
  refuse(with(llama(), {{"hidden_size", "48"}}), {"'hidden_size'", "whole number"});
  refuse(with(llama(), {{"hidden_size", 48.5}}), {"'hidden_size'", "whole number"});
  refuse(with(llama(), {{"num_hidden_layers", 0}}), {"'num_hidden_layers'", "from 1 to 4096"});
  refuse(with(llama(), {{"num_hidden_layers", -3}}), {"'num_hidden_layers'", "-3"});
  refuse(with(llama(), {{"tie_word_embeddings", 1}}), {"'tie_word_embeddings'", "true or false"});
  refuse(with(llama(), {{"rms_norm_eps", "small"}}), {"'rms_norm_eps'", "number"});
  refuse(with(llama(), {{"rms_norm_eps", 0}}), {"'rms_norm_eps'", "above 0"});
  refuse(with(llama(), {{"rope_theta", -1}}), {"'rope_theta'", "above 0"});
  refuse(with(llama(), {{"initializer_range", 0}}), {"'initializer_range'", "above 0"});
  refuse(with(llama(), {{"model_type", 5}}), {"'model_type'", "text"});
  refuse(with(llama(), {{"rope_scaling", 2}}), {"'rope_scaling'", "object"});
}

// A size by which memory or time would run out, or a sum of bytes would leave 64 bits, is a typing error.
TEST(Configuration, impossiblyLargeSizesAreRefused) {
  for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                            "head_dim", "intermediate_size"}) {
    refuse(with(llama(), {{field, INT32_MAX - 1}}), {std::string("'") + field + "'", "from 1 to "});
  }
  refuse(with(llama(), {{"vocab_size", 18446744073709551615u}}), {"'vocab_size'", "is 18446744073709551615"});
  refuse(with(llama(), {{"rms_norm_eps", 1e300}}), {"'rms_norm_eps'", "32 bits"});
}

TEST(Configuration, scalingFactorsThatGiveNoFrequenciesAreRefused) {
  const json none = {{"rope_type", "llama3"},
                     {"low_freq_factor", 0},
                     {"high_freq_factor", 0},
                     {"original_max_position_embeddings", 0}};
  refuse(with(llama(), {{"rope_scaling", none}}), {"'rope_type'", "no number"});
}

TEST(Configuration, numbersThatDoNotDivideAreRefused) {
  refuse(with(gpt2(), {{"n_head", 5}}), {"'n_head'", "48"});
  refuse(with(llama(), {{"num_attention_heads", 5}, {"num_key_value_heads", 5}}), {"'num_attention_heads'", "48"});
  refuse(with(llama(), {{"num_key_value_heads", 4}}), {"'num_key_value_heads'", "6"});
  refuse(with(llama(), {{"head_dim", 7}}), {"'head_dim'", "even"});
}

TEST(Configuration, whatWeDoNotHaveIsRefused) {
  refuse(with(gpt2(), {{"activation_function", "tanh"}}), {"'activation_function'", "'tanh'", "gelu_new"});
  refuse(with(gpt2(), {{"scale_attn_weights", false}}), {"'scale_attn_weights'"});
  refuse(with(gpt2(), {{"scale_attn_by_inverse_layer_idx", true}}), {"'scale_attn_by_inverse_layer_idx'"});
  refuse(with(llama(), {{"hidden_act", "gelu"}}), {"'hidden_act'", "silu"});
  refuse(with(llama(), {{"rope_scaling", {{"rope_type", "yarn"}}}}), {"'yarn'", "default, linear and llama3"});
}

TEST(Configuration, textThatIsNoJsonObjectIsRefused) {
  auto refuseText = [](const std::string& text) {
    data::expectError(base::ErrorKind::usage, {"'x.json'", "JSON"}, [&] { parseConfiguration(text, "'x.json'"); });
  };
  refuseText("");
  refuseText("{");
  refuseText("[1, 2]");
  refuseText("\"llama\"");
  refuseText("{\"layer_types\": " + std::string(200000, '['));
}

TEST(Configuration, theTextIsKeptForCheckpoints) {
  const std::string text = gpt2().dump(4);
  EXPECT_EQ(parseConfiguration(text, "here").json, text);
}

TEST(Configuration, aFileThatCannotBeReadIsAFileError) {
  const data::TemporaryFolder folder;
  const std::string path = (folder.path() / "absent.json").string();
  data::expectError(base::ErrorKind::file, {path}, [&] { readConfiguration(path); });
}

TEST(Configuration, aFilesNameIsInTheMessage) {
  const data::TemporaryFolder folder;
  const std::string path = folder.write("model.json", R"({"model_type": "gpt2"})");
  data::expectError(base::ErrorKind::usage, {path, "'vocab_size'"}, [&] { readConfiguration(path); });
}

}  // namespace
}  // namespace tandem::model
