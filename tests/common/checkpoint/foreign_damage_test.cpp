// What is wrong with other people's files is said with the file and the place, and never crashes.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/checkpoint/gguf.h"
#include "common/checkpoint/gguf_model.h"
#include "common/checkpoint/hugging_face.h"
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
using nlohmann::json;

class DamagedModel : public ::testing::Test {
 protected:
  RunFolder folder_{world()};

  void SetUp() override {
    if (world().rank() == 0) fs::create_directories(folder_.path());
    world().barrier();
  }

  fs::path path(const std::string& name) const { return folder_.path() / name; }

  void put(const fs::path& file, const std::string& bytes) const {
    if (world().rank() == 0) {
      fs::create_directories(file.parent_path());
      base::replaceFile(file, bytes);
    }
    world().barrier();
  }

  // That opening fails as bad data, the message naming all of these.
  void expectRefusal(const fs::path& model, const std::vector<std::string>& words) const {
    const base::Error error = errorOf([&] { openModel(world(), model); });
    EXPECT_EQ(error.kind(), ErrorKind::badData) << error.message();
    for (const std::string& word : words)
      EXPECT_TRUE(contains(error.message(), word)) << word << " in " << error.message();
    world().barrier();
  }
};

std::string safetensors(const std::string& head, std::size_t elementBytes) {
  const std::uint64_t length = head.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes + head + std::string(elementBytes, '\0');
}

// A file with one tensor, its entry as given.
std::string oneTensor(const std::string& entry, std::size_t elementBytes = 16) {
  return safetensors(R"({"a": )" + entry + "}", elementBytes);
}

TEST_F(DamagedModel, safetensorsFilesAreRefusedByFileTensorAndReason) {
  const fs::path file = path("bad.safetensors");
  const auto expect = [&](const std::string& bytes, const std::vector<std::string>& words) {
    put(file, bytes);
    const base::Error error = errorOf([&] { SafetensorsFile{file}; });
    EXPECT_EQ(error.kind(), ErrorKind::badData);
    EXPECT_TRUE(contains(error.message(), file.string())) << error.message();
    for (const std::string& word : words)
      EXPECT_TRUE(contains(error.message(), word)) << word << " in " << error.message();
    world().barrier();
  };
  expect("", {"too few"});
  expect("1234567", {"too few"});
  expect(std::string(8, '\xff'), {"18446744073709551615", "truncated"});
  expect(std::string("\xff\xff\xff\x7f\0\0\0\0rest", 12), {"2147483647"});
  expect(safetensors("[1]", 0), {"no JSON object"});
  expect(safetensors("{\"a\":", 0), {"no JSON object"});
  expect(safetensors(std::string(5000, '[') + std::string(5000, ']'), 0), {"nested"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [4]})"), {"'a'", "data_offsets"});
  expect(oneTensor("7"), {"'a'"});
  expect(oneTensor(R"({"dtype": "Q9", "shape": [4], "data_offsets": [0, 16]})"), {"'a'", "unknown dtype 'Q9'"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [5], "data_offsets": [0, 16]})"), {"'a'", "needs 20 bytes", "16"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]})"), {"'a'", "data_offsets"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [8], "data_offsets": [0, 32]})"), {"'a'", "truncated"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]})"), {"'a'", "shape"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 16]})"),
         {"impossible shape"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [1, 1, 1, 1, 1, 4], "data_offsets": [0, 16]})"), {"impossible shape"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [3], "data_offsets": [4, 16]})"), {"gap"});
  expect(oneTensor(R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 12]})"), {"behind its last tensor"});
  expect(safetensors(R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]},
                         "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}})",
                     16),
         {"'b'", "overlaps 'a'"});
  expect(safetensors(R"({"__metadata__": {"a": 1}})", 0), {"__metadata__"});
}

// Rewrites the head of a folder's weights.
void changeHead(const fs::path& file, const std::function<void(json&)>& change) {
  std::string bytes = base::readFile(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  json head = json::parse(bytes.substr(8, length));
  change(head);
  base::replaceFile(file, safetensors(head.dump(), 0) + bytes.substr(8 + length));
}

TEST_F(DamagedModel, aTensorThatTheModelLacksOrDoesNotKnowIsNamed) {
  const fs::path folder = path("model"), file = folder / safetensorsName;
  writeHuggingFace(MadeModel(llamaLike("llama", 9, 3, R"(, "tie_word_embeddings": true)")), folder, {}, world());
  const std::string whole = base::readFile(file);
  world().barrier();
  const std::string key = "model.layers.1.self_attn.k_proj.weight";
  const auto damage = [&](const std::function<void(json&)>& change, const std::vector<std::string>& words) {
    if (world().rank() == 0) {
      base::replaceFile(file, whole);
      changeHead(file, change);
    }
    world().barrier();
    expectRefusal(folder, words);
  };
  damage([&](json& head) { head["model.layers.1.self_attn.x_proj.weight"] = head[key], head.erase(key); },
         {key, "no tensor"});
  damage([&](json& head) { head[key]["shape"] = {64, 24}; }, {key, "[64, 24]", "[24, 64]"});
  damage([&](json& head) { head[key]["dtype"] = "I32"; }, {key, "I32"});
  put(file, whole);
  put(folder / configurationName,
      json::parse(base::readFile(folder / configurationName))
          .patch(json::parse(R"([{"op": "replace", "path": "/num_hidden_layers", "value": 1}])"))
          .dump());
  expectRefusal(folder, {"model.layers.1.", "unknown"});
}

TEST_F(DamagedModel, anUnknownArchitectureIsNamed) {
  put(path("model") / configurationName, R"({"model_type": "mamba", "vocab_size": 10})");
  expectRefusal(path("model"), {"mamba", "config.json"});
  put(path("empty") / configurationName, llamaLike("llama", 4, 4));
  expectRefusal(path("empty"), {"model.safetensors"});
  put(path("none.bin"), "text");
  expectRefusal(path("none.bin"), {"none.bin"});
}

TEST_F(DamagedModel, anIndexThatLeadsNowhereIsRefused) {
  const fs::path folder = path("model"), index = folder / safetensorsIndexName;
  writeHuggingFace(MadeModel(gpt2()), folder, {.type = {}, .largestFile = 100000}, world());
  const json whole = json::parse(base::readFile(index));
  world().barrier();
  const auto damage = [&](const std::string& file, const std::vector<std::string>& words) {
    json changed = whole;
    changed["weight_map"]["transformer.wte.weight"] = file;
    put(index, changed.dump());
    expectRefusal(folder, words);
  };
  damage("../elsewhere.safetensors", {"weight_map", "transformer.wte.weight"});
  damage("model-00009-of-00009.safetensors", {"model-00009-of-00009.safetensors", "not there"});
  damage(whole["weight_map"]["transformer.ln_f.weight"].get<std::string>(), {"transformer.wte.weight", "no tensor"});
  put(index, "{}");
  expectRefusal(folder, {"weight_map"});
}

TEST_F(DamagedModel, ggufFilesAreRefusedByFileByteAndReason) {
  const fs::path file = path("model.gguf"), bad = path("bad.gguf");
  writeGguf(MadeModel(llamaLike("llama", 8, 4)), file, {.type = Encoding::q8_0}, world());
  const std::string whole = base::readFile(file);
  const auto withNumber = [&](std::size_t offset, auto number) {
    std::string changed = whole;
    std::memcpy(changed.data() + offset, &number, sizeof number);
    return changed;
  };
  const auto expect = [&](const std::string& bytes, const std::vector<std::string>& words) {
    put(bad, bytes);
    expectRefusal(bad, words);
  };
  expect(withNumber(4, std::uint32_t{9}), {"version 9"});
  expect(withNumber(4, std::uint32_t{0x03000000}), {"little-endian"});
  expect(withNumber(8, std::uint64_t{1} << 60), {"tensors", "byte 16", "no room"});
  expect(withNumber(16, ~std::uint64_t{0}), {"key-value pairs", "no room"});
  expect(withNumber(24, std::uint64_t{1} << 40), {"characters", "no room"});
  const std::size_t key = whole.find("general.architecture") + std::strlen("general.architecture");
  expect(withNumber(key, std::uint32_t{77}), {"unknown type 77"});
  const std::size_t name = whole.find("llama", key);
  expect(std::string(whole).replace(name, 5, "mamba"), {"architecture 'mamba'"});
  for (const std::size_t length :
       {std::size_t{4}, std::size_t{30}, name, whole.find("blk.1.attn_q.weight"), whole.size() - 5000}) {
    expect(whole.substr(0, length), {bad.string()});
  }
  const std::size_t tensor = whole.find("blk.1.attn_q.weight") + std::strlen("blk.1.attn_q.weight");
  expect(withNumber(tensor, std::uint32_t{9}), {"'blk.1.attn_q.weight'", "9 extents"});
  expect(withNumber(tensor + 4, ~std::uint64_t{0}), {"impossible shape"});
  expect(withNumber(tensor + 4, std::uint64_t{65}), {"no whole blocks of Q8_0"});
  expect(withNumber(tensor + 20, std::uint32_t{99}), {"type number 99"});
  expect(withNumber(tensor + 24, std::uint64_t{32}), {"overlaps"});
  expect(withNumber(tensor + 24, std::uint64_t{33}), {"multiple of 32"});
  expect(withNumber(tensor + 24, std::uint64_t{1} << 41), {"leaves the file"});
  expect(std::string(whole).replace(whole.find("blk.1.attn_q.weight"), 5, "blk.7"),
         {"blk.1.attn_q.weight", "no tensor"});
}

TEST_F(DamagedModel, anExportThatFailsLeavesNothing) {
  const MadeModel model(R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 36, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64})");
  const base::Error error = errorOf([&] { writeGguf(model, path("a.gguf"), {.type = Encoding::q4_0}, world()); });
  EXPECT_EQ(error.kind(), ErrorKind::badData);
  EXPECT_TRUE(contains(error.message(), "token_embd.weight")) << error.message();
  const MadeModel infinite(llamaLike("llama", 4, 4), DType::f32, INFINITY);
  EXPECT_EQ(errorOf([&] { writeGguf(infinite, path("b.gguf"), {.type = Encoding::q4_0}, world()); }).kind(),
            ErrorKind::badData);
  put(path("taken") / "file", "");
  EXPECT_EQ(errorOf([&] { writeHuggingFace(model, path("taken"), {}, world()); }).kind(), ErrorKind::usage);
  EXPECT_EQ(namesIn(folder_.path()), std::vector<std::string>{"taken"});
}

}  // namespace
}  // namespace tandem::checkpoint
