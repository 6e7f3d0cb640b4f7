#pragma once
// Small models of every family whose weights are functions of name and place, so that a weight in the wrong place
// shows.

#include <string>
#include <vector>

#include "common/checkpoint/encoding.h"
#include "common/checkpoint/family.h"
#include "common/checkpoint/model_source.h"

namespace tandem::checkpoint::test {

// A number of a tensor of theirs or a parameter of ours: exact in bfloat16 and float16, so that types do not matter.
inline float valueAt(const std::string& name, std::int64_t element) {
  std::uint64_t hash = 1469598103934665603ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  hash = (hash ^ static_cast<std::uint64_t>(element)) * 0x9e3779b97f4a7c15ull;
  return static_cast<float>(static_cast<int>((hash >> 40) % 255) - 127) / 64.0f;
}

class MadeModel : public ModelSource {
 public:
  explicit MadeModel(const std::string& configuration, base::DType type = base::DType::f32, double scale = 1)
      : scale_(scale) {
    place_ = "made";
    metadata_.configuration = configuration;
    configuration_ = model::parseConfiguration(configuration, "made");
    for (const Parameter& parameter : ourLayout(configuration_)) {
      parameters_.push_back({parameter.name, type, parameter.shape});
    }
  }
  void setTokenizer(const std::string& text) { metadata_.tokenizer = text; }
  void setCompanions(const std::string& text) { metadata_.companions = text; }

 private:
  void readStored(std::size_t number, std::int64_t begin, std::int64_t count, void* target) const override {
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(scale_) * valueAt(parameters_[number].name, begin + i));
    }
    convert(base::DType::f32, values.data(), parameters_[number].type, target, count);
  }

  double scale_;
};

inline std::string llamaLike(const std::string& type, int heads, int kvHeads, const std::string& more = "") {
  return R"({"model_type": ")" + type + R"(", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "max_position_embeddings": 64, "head_dim": 8, "num_attention_heads": )" +
         std::to_string(heads) + R"(, "num_key_value_heads": )" + std::to_string(kvHeads) + more + "}";
}

inline std::string gpt2() {
  return R"({"model_type": "gpt2", "vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64})";
}

// One of each family; rows of 64 and 96 are whole blocks of 32.
inline std::vector<std::string> families() {
  return {
      gpt2(),
      llamaLike("llama", 9, 3, R"(, "tie_word_embeddings": true)"),
      llamaLike("llama", 32, 4, R"(, "attention_bias": true, "mlp_bias": true)"),
      llamaLike("llama", 8, 2,
                R"(, "rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                       "high_freq_factor": 4, "original_max_position_embeddings": 8192})"),
      llamaLike("mistral", 8, 4, R"(, "sliding_window": 16)"),
      llamaLike("qwen2", 14, 2, R"(, "tie_word_embeddings": true)"),
      llamaLike("qwen3", 8, 4)};
}

inline std::vector<float> weightsOf(const ModelSource& model, const StoredParameter& parameter) {
  std::vector<float> values(static_cast<std::size_t>(parameter.shape.count()));
  model.read(parameter, 0, parameter.shape.count(), base::DType::f32, values.data());
  return values;
}

}  // namespace tandem::checkpoint::test
