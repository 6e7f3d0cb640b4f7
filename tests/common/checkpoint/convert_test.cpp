#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/base/hash.h"
#include "common/checkpoint/comparison.h"
#include "common/checkpoint/derived_models.h"
#include "common/checkpoint/gguf.h"
#include "common/checkpoint/gguf_model.h"
#include "common/checkpoint/hugging_face.h"
#include "common/checkpoint/inventory.h"
#include "common/checkpoint/quantised_model.h"
#include "common/checkpoint/step_writer.h"
#include "tests/common/checkpoint/models.h"
#include "tests/common/checkpoint/state.h"
#include "tests/mpi_test.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::DType;
using base::ErrorKind;
using tandem::test::world;
using namespace test;

void expectSameWeights(const ModelSource& expected, const ModelSource& got, const std::string& what) {
  ASSERT_EQ(got.parameters().size(), expected.parameters().size()) << what;
  for (const StoredParameter& parameter : expected.parameters()) {
    const StoredParameter& other = got.parameter(parameter.name);
    ASSERT_EQ(other.shape, parameter.shape) << what << ": " << parameter.name;
    EXPECT_EQ(weightsOf(got, other), weightsOf(expected, parameter)) << what << ": " << parameter.name;
  }
}

// The folder of a test, the same on all ranks.
class Convert : public ::testing::Test {
 protected:
  RunFolder folder_{world()};
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  void SetUp() override {
    if (world().rank() == 0) fs::create_directories(folder_.path());
    world().barrier();
  }
};

TEST_F(Convert, everyFamilyComesBackFromEveryFormatBitForBit) {
  int number = 0;
  for (const std::string& family : families()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const MadeModel model(family, type);
      const std::string name = std::to_string(number++), what = family + " " + base::name(type);
      writeModel(world(), path(name + ".run"), model, 3);
      const auto ours = openModel(world(), path(name + ".run"));
      expectSameWeights(model, *ours, what + " as a checkpoint");
      EXPECT_EQ(ours->parameters().front().type, type);
      writeHuggingFace(*ours, path(name + ".hf"), {}, world());
      const auto theirs = openModel(world(), path(name + ".hf"));
      expectSameWeights(model, *theirs, what + " as a Hugging Face folder");
      EXPECT_EQ(theirs->parameters().front().type, type);
      writeGguf(*ours, path(name + ".gguf"), {}, world());
      const auto gguf = openModel(world(), path(name + ".gguf"));
      expectSameWeights(model, *gguf, what + " as GGUF");
      const model::Configuration &c = model.configuration(), &d = gguf->configuration();
      EXPECT_EQ(d.type, c.type);
      EXPECT_EQ(d.slidingWindow, c.slidingWindow);
      EXPECT_EQ(d.tiedEmbeddings, c.tiedEmbeddings);
      ASSERT_EQ(d.rotaryFrequencies.size(), c.rotaryFrequencies.size());
      for (std::size_t i = 0; i < c.rotaryFrequencies.size(); ++i) {
        EXPECT_NEAR(d.rotaryFrequencies[i], c.rotaryFrequencies[i], 1e-6f * c.rotaryFrequencies[i]) << what;
      }
    }
  }
}

TEST_F(Convert, anyRangeOfAParameterIsRead) {
  for (const std::string& family : {gpt2(), llamaLike("llama", 9, 3)}) {
    const MadeModel model(family);
    const fs::path file = path(model.configuration().type + ".gguf"), folder = path(model.configuration().type);
    writeGguf(model, file, {}, world());
    writeHuggingFace(model, folder, {}, world());
    for (const fs::path& from : {file, folder}) {
      const auto read = openModel(world(), from);
      const StoredParameter& qkv = read->parameter("layers.1.attention.qkv.weight");
      const std::vector<float> all = weightsOf(model, model.parameter(qkv.name));
      for (const std::int64_t begin : {0, 1, 63, 64 * 13 + 7, 64 * 72 - 5}) {
        for (const std::int64_t count : {1, 64, 300}) {
          std::vector<float> part(static_cast<std::size_t>(count));
          read->read(qkv, begin, count, DType::f32, part.data());
          EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin)) << from << " from " << begin;
        }
      }
    }
  }
}

// As published with llama.cpp: there, rows 2i and 2i + 1 of a head are rows i and i + headSize / 2 of Hugging Face's.
TEST_F(Convert, queriesAndKeysOfLlamaAreInterleavedHeadByHeadInGgufAlone) {
  constexpr std::int64_t headSize = 8, width = 64;
  for (const auto& [heads, kvHeads] : {std::pair{9, 3}, {32, 4}}) {
    const MadeModel model(llamaLike("llama", heads, kvHeads, R"(, "attention_bias": true)"));
    const std::string name = std::to_string(heads);
    writeGguf(model, path(name + ".gguf"), {}, world());
    writeHuggingFace(model, path(name), {}, world());
    const GgufFile gguf(path(name + ".gguf"));
    const SafetensorsFile huggingFace(path(name) / safetensorsName);
    const auto valueIn = [](const TensorFile& file, const std::string& tensor, std::int64_t element) {
      float value = 0;
      const StoredTensor* const found = file.find(tensor);
      EXPECT_NE(found, nullptr) << tensor;
      if (found != nullptr) file.read(found->offset + 4 * element, std::as_writable_bytes(std::span(&value, 1)));
      return value;
    };
    const std::string ours = "layers.1.attention.qkv.";
    struct Kind {
      const char* gguf;
      const char* huggingFace;
      std::int64_t heads;
      std::int64_t firstRow;
      bool interleaved;
    };
    for (const Kind& kind : {Kind{"attn_q", "q_proj", heads, 0, true},
                             {"attn_k", "k_proj", kvHeads, heads * headSize, true},
                             {"attn_v", "v_proj", kvHeads, (heads + kvHeads) * headSize, false}}) {
      for (std::int64_t head = 0; head < kind.heads; ++head) {
        for (std::int64_t row = 0; row < headSize; ++row) {
          const std::int64_t theirs = kind.interleaved ? (row < 4 ? 2 * row : 2 * (row - 4) + 1) : row;
          const std::int64_t ourRow = kind.firstRow + head * headSize + row;
          const std::string weight = std::string("blk.1.") + kind.gguf, layer = "model.layers.1.self_attn.";
          EXPECT_EQ(valueIn(gguf, weight + ".weight", (head * headSize + theirs) * width + 5),
                    valueAt(ours + "weight", ourRow * width + 5));
          EXPECT_EQ(valueIn(gguf, weight + ".bias", head * headSize + theirs), valueAt(ours + "bias", ourRow));
          EXPECT_EQ(valueIn(huggingFace, layer + kind.huggingFace + ".weight", (head * headSize + row) * width + 5),
                    valueAt(ours + "weight", ourRow * width + 5));
        }
      }
    }
  }
}

TEST_F(Convert, matricesOfGpt2AreTransposedInHuggingFaceFoldersAlone) {
  const MadeModel model(gpt2());
  writeHuggingFace(model, path("gpt2"), {}, world());
  const SafetensorsFile file(path("gpt2") / safetensorsName);
  const StoredTensor* const attention = file.find("transformer.h.1.attn.c_attn.weight");
  ASSERT_NE(attention, nullptr);
  EXPECT_EQ(attention->shape, (base::Shape{64, 192}));
  float value = 0;
  file.read(attention->offset + 4 * (7 * 192 + 130), std::as_writable_bytes(std::span(&value, 1)));
  EXPECT_EQ(value, valueAt("layers.1.attention.qkv.weight", 130 * 64 + 7));
  EXPECT_EQ(file.find("transformer.wte.weight")->shape, (base::Shape{96, 64}));
}

std::string hashesOf(const fs::path& place) {
  std::vector<fs::path> files;
  if (!fs::is_directory(place)) return base::hashFile(place);
  for (const auto& entry : fs::recursive_directory_iterator(place)) {
    if (entry.is_regular_file() && entry.path().filename() != ".lock") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string hashes;
  for (const fs::path& file : files) hashes += fs::relative(file, place).string() + " " + base::hashFile(file) + "\n";
  return hashes;
}

TEST_F(Convert, theBytesAreTheSameAtAnyNumberOfRanks) {
  const auto alone = world().split(world().rank(), 0);
  const fs::path own = path("alone" + std::to_string(world().rank()));
  for (const std::string& family : {gpt2(), llamaLike("llama", 32, 4)}) {
    const MadeModel model(family, DType::bf16);
    const std::string& type = model.configuration().type;
    for (comm::Communicator* ranks : {&world(), alone.get()}) {
      const fs::path to = (ranks == &world() ? path("all") : own) / type;
      writeHuggingFace(model, to / "hf", {.type = {}, .largestFile = 60000}, *ranks);
      writeGguf(model, to / "q8.gguf", {.type = Encoding::q8_0}, *ranks);
      writeModel(*ranks, to / "run", model, 3);
    }
    for (const char* what : {"hf", "q8.gguf", "run"}) {
      const std::string expected = hashesOf(path("all") / type / what);
      EXPECT_FALSE(expected.empty());
      EXPECT_EQ(hashesOf(own / type / what), expected) << type << " " << what;
    }
  }
}

TEST_F(Convert, aFolderOfSeveralFilesHasAnIndexThatLeadsToEveryTensor) {
  const MadeModel model(llamaLike("qwen3", 8, 4));
  writeHuggingFace(model, path("sharded"), {.type = {}, .largestFile = 50000}, world());
  const auto index = nlohmann::json::parse(base::readFile(path("sharded") / safetensorsIndexName));
  std::map<std::string, std::int64_t> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) ++files[file.get<std::string>()];
  EXPECT_GT(files.size(), 3u);
  EXPECT_EQ(files.begin()->first, "model-00001-of-0000" + std::to_string(files.size()) + ".safetensors");
  expectSameWeights(model, *openModel(world(), path("sharded")), "sharded");
  std::int64_t bytes = 0;
  for (const StoredParameter& parameter : model.parameters()) bytes += 4 * parameter.shape.count();
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
}

TEST_F(Convert, whatLiesBesideTheWeightsComesBackAsItWas) {
  MadeModel model(R"({"architectures": ["LlamaForCausalLM"],   "model_type": "llama", "vocab_size": 96,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 64})");
  model.setTokenizer("{\"odd\": 1}");  // of a kind that we do not read: kept all the same
  model.setCompanions(R"({"chat_template.jinja": "{{ messages }}\n", "generation_config.json": "{\"a\":  2}"})");
  writeModel(world(), path("run"), model, 1);
  writeHuggingFace(*openModel(world(), path("run")), path("hf"), {}, world());
  EXPECT_EQ(base::readFile(path("hf") / "config.json"), model.metadata().configuration);
  EXPECT_EQ(base::readFile(path("hf") / "tokenizer.json"), "{\"odd\": 1}");
  EXPECT_EQ(base::readFile(path("hf") / "chat_template.jinja"), "{{ messages }}\n");
  EXPECT_EQ(base::readFile(path("hf") / "generation_config.json"), "{\"a\":  2}");
  EXPECT_FALSE(fs::exists(path("hf") / "tokenizer_config.json"));
  const auto read = openModel(world(), path("hf"));
  EXPECT_EQ(nlohmann::json::parse(read->metadata().companions), nlohmann::json::parse(model.metadata().companions));
  writeHuggingFace(*read, path("again"), {}, world());
  EXPECT_EQ(hashesOf(path("again")), hashesOf(path("hf")));
}

TEST_F(Convert, blocksStandForTheirValuesWithinHalfAStep) {
  const MadeModel model(llamaLike("llama", 32, 4));
  for (const auto& [type, steps] : {std::pair{Encoding::q8_0, 254.0}, {Encoding::q4_0, 15.0}}) {
    const fs::path file = path(std::string(name(type)) + ".gguf");
    writeGguf(model, file, {.type = type}, world());
    const auto read = openModel(world(), file);
    for (const StoredParameter& parameter : model.parameters()) {
      const std::vector<float> exact = weightsOf(model, parameter);
      const std::vector<float> got = weightsOf(*read, read->parameter(parameter.name));
      double largest = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_FALSE(std::isnan(got[i])) << parameter.name << " " << name(type);  // std::max passes it over
        largest = std::max(largest, std::abs(double(exact[i]) - double(got[i])));
      }
      // Values are within +-2; vectors stay as they are.
      EXPECT_LE(largest, parameter.shape.rank() == 1 ? 0.0 : 4.0 / steps * 1.01) << parameter.name << " " << name(type);
      EXPECT_EQ(largest > 0, parameter.shape.rank() == 2) << parameter.name;
    }
  }
}

TEST_F(Convert, aReshardedStepHoldsAllThatItHeld) {
  {
    Writer writer(world(), path("run"), 2);
    saveStep(writer, 9, world());
  }
  const Reader step(world(), path("run"));
  reshard(world(), path("wide"), step, 7);
  const Reader wide(world(), path("wide"));
  expectState(wide, 9);
  EXPECT_TRUE(fs::exists(wide.folder() / "shard-00006-of-00007.h5"));
  const base::Error error = errorOf([&] { reshard(world(), path("wide"), step, 7); });
  EXPECT_EQ(error.kind(), ErrorKind::usage);
}

TEST_F(Convert, aQuantisedCheckpointIsReadAsTheValuesThatItsCodesStandFor) {
  const MadeModel model(llamaLike("llama", 9, 3));
  for (const QuantisedFormat format : {QuantisedFormat::int8, QuantisedFormat::int4}) {
    writeQuantised(world(), path(name(format)), model, format, 3);
    const auto read = openModel(world(), path(name(format)));
    for (const StoredParameter& parameter : model.parameters()) {
      const auto own = formatOfParameter(parameter.name, parameter.shape, format);
      const std::int64_t inputs = parameter.shape.last();
      std::vector<float> expected = weightsOf(model, parameter);
      if (own) dequantiseRows(*own, quantiseRows(*own, expected, inputs, {}), inputs, expected, {});
      EXPECT_EQ(weightsOf(*read, read->parameter(parameter.name)), expected) << parameter.name;
      if (parameter.shape.rank() == 1) continue;
      std::vector<float> part(7);  // across two rows
      read->read(read->parameter(parameter.name), inputs - 3, 7, DType::f32, part.data());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + inputs - 3)) << parameter.name;
    }
  }
}

TEST_F(Convert, theMeanOfModelsWeighsThem) {
  std::vector<std::unique_ptr<ModelSource>> models;
  models.push_back(std::make_unique<MadeModel>(gpt2()));
  models.push_back(std::make_unique<MadeModel>(gpt2(), DType::f32, 3));
  const auto mean = averageOf(std::move(models), {3, 1});
  for (const StoredParameter& parameter : mean->parameters()) {
    EXPECT_EQ(weightsOf(*mean, parameter)[5], 1.5f * valueAt(parameter.name, 5));
  }
  std::vector<std::unique_ptr<ModelSource>> unlike;
  unlike.push_back(std::make_unique<MadeModel>(gpt2()));
  unlike.push_back(std::make_unique<MadeModel>(llamaLike("llama", 4, 4)));
  EXPECT_EQ(errorOf([&] { averageOf(std::move(unlike), {}); }).kind(), ErrorKind::badData);
}

// A file of safetensors with tensors whose values are valueAt(name).
void writeTensors(const fs::path& file, const std::vector<NewTensor>& tensors) {
  if (world().rank() == 0) {
    const FileLayout layout = layOutSafetensors(tensors, {});
    std::string bytes = layout.head;
    for (const StoredTensor& tensor : layout.tensors) {
      for (std::int64_t i = 0; i < tensor.shape.count(); ++i) {
        const float value = valueAt(tensor.name, i);
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
    }
    base::replaceFile(file, bytes);
  }
  world().barrier();
}

TEST_F(Convert, anAdapterIsAddedToItsRowsAlone) {
  const std::string module = "base_model.model.model.layers.1.self_attn.k_proj.";
  const std::string a = module + "lora_A.weight", b = module + "lora_B.weight", m = module + "lora_magnitude_vector";
  const auto write = [&](const std::string& name, const std::string& settings, bool magnitude) {
    if (world().rank() == 0) {
      fs::create_directories(path(name));
      base::replaceFile(path(name) / "adapter_config.json",
                        R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6)" + settings + "}");
    }
    std::vector<NewTensor> tensors = {{a, Encoding::f32, {3, 64}}, {b, Encoding::f32, {24, 3}}};
    if (magnitude) tensors.push_back({m, Encoding::f32, {24}});
    writeTensors(path(name) / "adapter_model.safetensors", tensors);
    return withAdapter(std::make_unique<MadeModel>(llamaLike("llama", 9, 3)), path(name));
  };
  constexpr std::int64_t firstRow = 72, row = 11, width = 64;  // of the keys
  const std::string qkv = "layers.1.attention.qkv.weight";
  std::vector<double> expected(width);
  const auto compute = [&](double scale) {
    for (std::int64_t i = 0; i < width; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < 3; ++k) sum += double(valueAt(b, row * 3 + k)) * double(valueAt(a, k * width + i));
      expected[static_cast<std::size_t>(i)] = double(valueAt(qkv, (firstRow + row) * width + i)) + scale * sum;
    }
  };
  const auto expectRow = [&](const ModelSource& model, double stretch) {
    const std::vector<float> got = weightsOf(model, model.parameter(qkv));
    for (std::int64_t i = 0; i < width; ++i) {
      EXPECT_NEAR(got[static_cast<std::size_t>((firstRow + row) * width + i)],
                  stretch * expected[static_cast<std::size_t>(i)], 1e-6);
    }
    EXPECT_EQ(got[71 * width + 3], valueAt(qkv, 71 * width + 3));  // a query's
    EXPECT_EQ(got[96 * width + 3], valueAt(qkv, 96 * width + 3));  // a value's
  };
  compute(2);
  expectRow(*write("plain", "", false), 1);
  compute(6 / std::sqrt(3.0));
  expectRow(*write("stable", R"(, "use_rslora": true)", false), 1);
  compute(2);
  double squares = 0;
  for (const double value : expected) squares += value * value;
  expectRow(*write("dora", R"(, "use_dora": true)", true), double(valueAt(m, row)) / std::sqrt(squares));
  EXPECT_EQ(errorOf([&] { write("biased", R"(, "bias": "all")", false); }).kind(), ErrorKind::badData);
}

TEST_F(Convert, aRunThatHoldsAdaptersIsReadWithThemInItsBaseAndWrittenForPeft) {
  const std::string configuration = llamaLike("llama", 9, 3);
  const MadeModel base(configuration);
  writeModel(world(), path("base"), base, 2);
  const fs::path step = path("base") / "checkpoints" / "step-00000000";
  const nlohmann::json progress = {
      {"adapters",
       {{"rank", 3}, {"alpha", 6}, {"dropout", 0.1}, {"rank_stabilised", false}, {"targets", {"attention"}}}},
      {"base", {{"path", step.string()}, {"fingerprint", base::hashFile(step / "checksums.xxh128")}}}};
  const std::vector<StepTensor> tensors = {{"model/layers.1.attention.qkv.lora_a", DType::f32, {3, 64}},
                                           {"model/layers.1.attention.qkv.lora_b", DType::f32, {120, 3}}};
  writeStep(
      world(), path("tuned"), {.step = 5, .configuration = configuration, .progress = progress.dump()}, tensors,
      [&](std::size_t tensor, std::int64_t begin, std::int64_t count, void* target) {
        for (std::int64_t i = 0; i < count; ++i) {
          static_cast<float*>(target)[i] = valueAt(tensors[tensor].name, begin + i);
        }
      },
      1);
  const auto tuned = openModel(world(), path("tuned"));
  const StoredParameter& qkv = tuned->parameter("layers.1.attention.qkv.weight");
  const std::vector<float> got = weightsOf(*tuned, qkv);
  for (const std::int64_t row : {0, 71, 72, 119}) {
    double sum = 0;
    for (std::int64_t k = 0; k < 3; ++k) {
      sum += static_cast<double>(valueAt(tensors[1].name, row * 3 + k)) *
             static_cast<double>(valueAt(tensors[0].name, k * 64 + 9));
    }
    EXPECT_NEAR(got[static_cast<std::size_t>(row * 64 + 9)],
                static_cast<double>(valueAt(qkv.name, row * 64 + 9)) + 2 * sum, 1e-6);
  }
  EXPECT_EQ(weightsOf(*tuned, tuned->parameter("layers.0.attention.qkv.weight")),
            weightsOf(base, base.parameter("layers.0.attention.qkv.weight")));

  writeAdapter(world(), Reader(world(), path("tuned")), path("peft"));
  expectSameWeights(*tuned, *withAdapter(std::make_unique<MadeModel>(configuration), path("peft")), "by PEFT's form");
  writeModel(world(), path("merged"), *tuned, 1);
  expectSameWeights(*tuned, *openModel(world(), path("merged")), "merged");

  if (world().rank() == 0) flipByte(step / "checksums.xxh128", 3);
  world().barrier();
  EXPECT_EQ(errorOf([&] { openModel(world(), path("tuned")); }).kind(), ErrorKind::badData);
}

// A run whose adapters are DoRA's, beside a base that is made here too.
class ConvertDecomposed : public Convert {
 protected:
  static constexpr std::int64_t outputs = 120, inputs = 64, rank = 3;
  const std::string configuration_ = llamaLike("llama", 9, 3);
  const std::string qkv_ = "layers.1.attention.qkv.weight";
  std::vector<StepTensor> tensors_ = {{"model/layers.1.attention.qkv.lora_a", DType::f32, {rank, inputs}},
                                      {"model/layers.1.attention.qkv.lora_b", DType::f32, {outputs, rank}},
                                      {"model/layers.1.attention.qkv.lora_m", DType::f32, {outputs}}};

  // `size`: of the numbers of the base, and of B.
  std::unique_ptr<ModelSource> tune(double size, const nlohmann::json& more = {}) {
    writeModel(world(), path("base"), MadeModel(configuration_, DType::f32, size), 2);
    const fs::path step = path("base") / "checkpoints" / "step-00000000";
    nlohmann::json progress = {
        {"adapters",
         {{"rank", rank}, {"alpha", 6}, {"dropout", 0.1}, {"rank_stabilised", false}, {"decomposed", true}}},
        {"base", {{"path", step.string()}, {"fingerprint", base::hashFile(step / "checksums.xxh128")}}}};
    if (more.is_object()) progress["adapters"].update(more);
    writeStep(
        world(), path("tuned"), {.step = 5, .configuration = configuration_, .progress = progress.dump()}, tensors_,
        [&](std::size_t tensor, std::int64_t begin, std::int64_t count, void* target) {
          const double factor = tensor == 1 ? size : 1;
          for (std::int64_t i = 0; i < count; ++i) {
            static_cast<float*>(target)[i] = static_cast<float>(factor * number(tensors_[tensor].name, begin + i));
          }
        },
        1);
    return openModel(world(), path("tuned"));
  }

  static double number(const std::string& tensor, std::int64_t element) {
    return static_cast<double>(valueAt(tensor, element));
  }
  static double lengthOf(const std::vector<float>& weights, std::int64_t row) {
    double squares = 0;
    for (std::int64_t i = 0; i < inputs; ++i) {
      const auto value = static_cast<double>(weights[static_cast<std::size_t>(row * inputs + i)]);
      squares += value * value;
    }
    return std::sqrt(squares);
  }
};

TEST_F(ConvertDecomposed, rowsHaveTheDirectionsAndLengthsThatWereLearned) {
  const auto tuned = tune(1);
  const std::vector<float> got = weightsOf(*tuned, tuned->parameter(qkv_));
  for (const std::int64_t row : {0, 71, 72, 119}) {
    std::vector<double> frozen, changed;
    double squares = 0, changedSquares = 0;
    for (std::int64_t i = 0; i < inputs; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < rank; ++k) {
        sum += number(tensors_[1].name, row * rank + k) * number(tensors_[0].name, k * inputs + i);
      }
      frozen.push_back(number(qkv_, row * inputs + i));
      changed.push_back(frozen.back() + 2 * sum);
      squares += frozen.back() * frozen.back();
      changedSquares += changed.back() * changed.back();
    }
    const double stretch = (std::sqrt(squares) + number(tensors_[2].name, row)) / std::sqrt(changedSquares);
    for (std::int64_t i = 0; i < inputs; ++i) {
      EXPECT_NEAR(got[static_cast<std::size_t>(row * inputs + i)], stretch * changed[static_cast<std::size_t>(i)],
                  1e-6);
    }
  }
  writeModel(world(), path("merged"), *tuned, 1);
  expectSameWeights(*tuned, *openModel(world(), path("merged")), "merged");
}

TEST_F(ConvertDecomposed, theFormOfPeftHasWholeLengthsUnderItsNames) {
  const auto tuned = tune(1);
  const std::vector<float> expected = weightsOf(*tuned, tuned->parameter(qkv_));
  writeAdapter(world(), Reader(world(), path("tuned")), path("peft"));
  const auto settings = nlohmann::json::parse(base::readFile(path("peft") / "adapter_config.json"));
  EXPECT_EQ(settings.at("use_dora"), true);

  const SafetensorsFile file(path("peft") / "adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 9u);
  std::int64_t firstRow = 0;
  for (const auto& [projection, rows] : {std::pair{"q", 72}, {"k", 24}, {"v", 24}}) {
    const std::string module = std::string("base_model.model.model.layers.1.self_attn.") + projection + "_proj.";
    const StoredTensor* const lengths = file.find(module + "lora_magnitude_vector");
    ASSERT_NE(lengths, nullptr) << module;
    ASSERT_EQ(lengths->shape, base::Shape({rows}));
    std::vector<float> values(static_cast<std::size_t>(rows));
    file.read(lengths->offset, std::as_writable_bytes(std::span(values)));
    for (std::int64_t row = 0; row < rows; ++row) {
      const double length = std::abs(static_cast<double>(values[static_cast<std::size_t>(row)]));
      EXPECT_NEAR(length, lengthOf(expected, firstRow + row), 1e-5) << module << row;
    }
    firstRow += rows;
  }
  const auto again = withAdapter(std::make_unique<MadeModel>(configuration_), path("peft"));
  const std::vector<float> got = weightsOf(*again, again->parameter(qkv_));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6) << i;
}

// The rows that are lengthened are those of the rounded matrix.
TEST_F(ConvertDecomposed, lengthsBesideAQuantisedBaseAreOfWhatItIsRoundedTo) {
  const auto tuned = tune(1, {{"base_format", "int4"}});
  const std::vector<float> expected = weightsOf(*tuned, tuned->parameter(qkv_));
  writeAdapter(world(), Reader(world(), path("tuned")), path("peft"));
  const SafetensorsFile file(path("peft") / "adapter_model.safetensors");
  const StoredTensor* const lengths =
      file.find("base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector");
  ASSERT_NE(lengths, nullptr);
  std::vector<float> values(72);
  file.read(lengths->offset, std::as_writable_bytes(std::span(values)));
  for (std::int64_t row = 0; row < 72; ++row) {
    const double length = std::abs(static_cast<double>(values[static_cast<std::size_t>(row)]));
    EXPECT_NEAR(length, lengthOf(expected, row), 1e-5) << row;
  }
}

TEST_F(ConvertDecomposed, rowsOfZerosStayZeros) {
  const auto tuned = tune(0);
  const std::vector<float> got = weightsOf(*tuned, tuned->parameter(qkv_));
  EXPECT_EQ(got, std::vector<float>(static_cast<std::size_t>(outputs * inputs), 0.0f));
}

TEST_F(ConvertDecomposed, lengthsThatAreMissingAreNamed) {
  tensors_.pop_back();
  const base::Error error = errorOf([&] { tune(1); });
  EXPECT_EQ(error.kind(), ErrorKind::badData);
  EXPECT_NE(error.message().find("qkv.lora_m"), std::string::npos) << error.message();
}

TEST_F(Convert, differencesAreFoundAndCounted) {
  const MadeModel one(gpt2()), other(gpt2(), DType::f32, 2);
  for (const ParameterDifference& each : compare(world(), one, one)) EXPECT_TRUE(each.same()) << each.name;
  for (const ParameterDifference& each : compare(world(), one, other)) {
    EXPECT_NEAR(each.relative, 1, 1e-12) << each.name;
    EXPECT_GT(each.different, 0);
  }
  const MadeModel longer(
      R"({"model_type": "gpt2", "vocab_size": 96, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64})");
  std::int64_t problems = 0;
  for (const ParameterDifference& each : compare(world(), one, longer)) problems += each.problem.empty() ? 0 : 1;
  EXPECT_EQ(problems, 12);  // a layer's parameters
}

TEST_F(Convert, theInventoryHasTheHashOfEveryTensor) {
  const MadeModel model(llamaLike("llama", 9, 3));
  writeHuggingFace(model, path("hf"), {}, world());
  const Inventory inventory = takeInventory(world(), path("hf"), true);
  EXPECT_EQ(inventory.tensors.size(), 21u);
  for (const InventoryTensor& tensor : inventory.tensors) EXPECT_EQ(tensor.hash.size(), 32u) << tensor.name;
  std::vector<float> norm;
  for (std::int64_t i = 0; i < 64; ++i) norm.push_back(valueAt("final_norm.weight", i));
  const std::string expected = base::hashHex({reinterpret_cast<const char*>(norm.data()), norm.size() * sizeof(float)});
  const auto found = std::ranges::find(inventory.tensors, "model.norm.weight", &InventoryTensor::name);
  ASSERT_NE(found, inventory.tensors.end());
  EXPECT_EQ(found->hash, expected);
}

}  // namespace
}  // namespace tandem::checkpoint
