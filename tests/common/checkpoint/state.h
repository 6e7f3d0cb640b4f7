#pragma once
// A state to save whose every byte is a function of step, tensor and place, so that any mixture of steps is seen.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/checkpoint/checkpoint.h"

namespace tandem::checkpoint::test {

struct TensorKind {
  std::string name;
  base::DType type;
  base::Shape shape;
};

inline std::vector<TensorKind> tensorKinds() {
  using base::DType;
  return {{"model/bias", DType::f32, {37}},
          {"model/layers.0.weight", DType::bf16, {13, 29}},
          {"model/layers.1.weight", DType::f32, {3, 5, 7}},
          {"model/convolution", DType::f16, {2, 3, 4, 5}},
          {"optimizer/first_moment/layers.1.weight", DType::f32, {64, 300}},
          {"optimizer/step", DType::i64, {1}},
          {"optimizer/none", DType::u8, {0, 4}}};
}

inline std::byte expectedByte(std::int64_t step, std::size_t tensor, std::int64_t place) {
  return static_cast<std::byte>(step * 31 + static_cast<std::int64_t>(tensor) * 7 + place * 13 + place / 251);
}

// The whole tensors in memory, and each rank's uneven share of them.
class State {
 public:
  State(std::int64_t step, int rank, int ranks) {
    const std::vector<TensorKind> kinds = tensorKinds();
    values_.resize(kinds.size());
    for (std::size_t t = 0; t < kinds.size(); ++t) {
      const std::int64_t size = base::byteSize(kinds[t].type);
      values_[t].resize(static_cast<std::size_t>(kinds[t].shape.count() * size));
      for (std::size_t i = 0; i < values_[t].size(); ++i) {
        values_[t][i] = expectedByte(step, t, static_cast<std::int64_t>(i));
      }
      LocalTensor tensor{kinds[t].name, kinds[t].type, kinds[t].shape, {}};
      int owner = static_cast<int>(t) % ranks;
      std::int64_t length = 1 + static_cast<std::int64_t>(t);
      for (std::int64_t begin = 0; begin < kinds[t].shape.count(); begin += length, length = length * 2 + 1) {
        const std::int64_t count = std::min(length, kinds[t].shape.count() - begin);
        if (owner == rank) tensor.pieces.push_back({begin, count, values_[t].data() + begin * size});
        owner = (owner + 1) % ranks;
      }
      tensors.push_back(tensor);
    }
    metadata.step = step;
    metadata.tokenizer = R"({"name": "tokenizer"})";
    metadata.configuration = R"({"hidden_size": 5})";
    metadata.progress = std::to_string(step * 1000);
  }

  Metadata metadata;
  std::vector<LocalTensor> tensors;

 private:
  std::vector<std::vector<std::byte>> values_;
};

// Checks every byte that a reader gives, whole and by ranges.
inline void expectState(const Reader& reader, std::int64_t step) {
  EXPECT_EQ(reader.metadata().step, step);
  EXPECT_EQ(reader.metadata().progress, std::to_string(step * 1000));
  EXPECT_EQ(reader.metadata().configuration, R"({"hidden_size": 5})");
  EXPECT_EQ(reader.metadata().options, "");
  const std::vector<TensorKind> kinds = tensorKinds();
  EXPECT_EQ(reader.tensors().size(), kinds.size());
  for (std::size_t t = 0; t < kinds.size(); ++t) {
    const std::int64_t count = kinds[t].shape.count();
    const std::int64_t size = base::byteSize(kinds[t].type);
    ASSERT_TRUE(reader.has(kinds[t].name));
    for (const auto& [begin, end] : {std::pair{std::int64_t{0}, count}, {count / 3, count / 2}, {count / 2, count}}) {
      std::vector<std::byte> got(static_cast<std::size_t>((end - begin) * size));
      reader.read(kinds[t].name, kinds[t].type, kinds[t].shape, begin, end - begin, got.data());
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        wrong += got[i] != expectedByte(step, t, begin * size + static_cast<std::int64_t>(i));
      }
      EXPECT_EQ(wrong, 0) << "bytes differ in " << kinds[t].name << " of step " << step;
    }
  }
}

inline void flipByte(const std::filesystem::path& path, std::int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(offset);
  file.put(byte);
}

inline std::filesystem::path stepFolder(const std::filesystem::path& run, const std::string& name) {
  return run / "checkpoints" / name;
}

// Names in the folder of the steps, sorted.
inline std::vector<std::string> namesIn(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// A run folder shared by the ranks of a group, removed at the end.
class RunFolder {
 public:
  explicit RunFolder(comm::Communicator& ranks) : ranks_(ranks) {
    static int number = 0;
    const auto own = std::filesystem::temp_directory_path() /
                     ("tandem_checkpoint_test." + std::to_string(::getpid()) + "." + std::to_string(number++));
    path_ = comm::broadcastText(ranks, own.string(), 0);
    if (ranks.rank() == 0) std::filesystem::remove_all(path_);
    ranks.barrier();
  }
  ~RunFolder() {
    if (std::uncaught_exceptions() == 0) ranks_.barrier();
    std::error_code ignored;
    if (ranks_.rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  comm::Communicator& ranks_;
  std::filesystem::path path_;
};

// Saves a step and waits for it.
inline void saveStep(Writer& writer, std::int64_t step, comm::Communicator& ranks) {
  const State state(step, ranks.rank(), ranks.size());
  writer.save(state.metadata, state.tensors);
  writer.finish();
}

template <class Work>
base::Error errorOf(const Work& work) {
  try {
    work();
  } catch (const base::Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return base::Error(base::ErrorKind::numeric, "");
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace tandem::checkpoint::test
