#include "common/checkpoint/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/checkpoint/detail/foreign_model.h"
#include "common/checkpoint/detail/gguf_tokenizer.h"
#include "common/checkpoint/detail/tensor_output.h"
#include "common/checkpoint/gguf.h"

namespace tandem::checkpoint {
namespace detail {
namespace {

using base::Error;
using base::ErrorKind;
using Json = nlohmann::ordered_json;

constexpr const char* rotaryFactors = "rope_freqs.weight";

// The keys of a GGUF file by the architecture's prefix.
class Keys {
 public:
  explicit Keys(const GgufFile& file) : file_(file), architecture_(file.text("general.architecture").value_or("")) {}

  const std::string& architecture() const { return architecture_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::badData, file_.path().string() + ": " + what);
  }
  std::optional<std::int64_t> integer(const std::string& key) const { return file_.integer(architecture_ + "." + key); }
  std::int64_t count(const std::string& key) const {
    const auto value = integer(key);
    if (!value) fail("the key '" + architecture_ + "." + key + "' is missing");
    return *value;
  }
  std::optional<double> number(const std::string& key) const { return file_.number(architecture_ + "." + key); }
  std::optional<std::string> text(const std::string& key) const { return file_.text(architecture_ + "." + key); }

 private:
  const GgufFile& file_;
  std::string architecture_;
};

std::int64_t vocabularyOf(const GgufFile& file, const Keys& keys) {
  const StoredTensor* const embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.rank() != 2) keys.fail("has no matrix 'token_embd.weight'");
  return embedding->shape[0];
}

// Llama 3.1's scaling is in the file as the factors that each pair's wavelength is stretched by. The longest
// wavelengths are stretched by the whole factor; the rest of what the configuration says has had the same values in all
// models.
Json llama3Scaling(const GgufFile& file, const StoredTensor& tensor) {
  if (!tensor.encoding || tensor.shape.rank() != 1 || tensor.shape.count() == 0) {
    throw Error(ErrorKind::badData, file.path().string() + ": the tensor 'rope_freqs.weight' is no vector of floats");
  }
  std::vector<float> factors(static_cast<std::size_t>(tensor.shape.count()));
  readElements(file, tensor, 0, tensor.shape.count(), base::DType::f32, reinterpret_cast<std::byte*>(factors.data()));
  return {{"rope_type", "llama3"},
          {"factor", *std::ranges::max_element(factors)},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

Json rotaryScaling(const GgufFile& file, const Keys& keys) {
  if (const StoredTensor* const factors = file.find(rotaryFactors)) return llama3Scaling(file, *factors);
  const std::string type = keys.text("rope.scaling.type").value_or("none");
  if (type == "none") return nullptr;
  if (type != "linear") keys.fail("its rotary positions are scaled by '" + type + "', which we do not have");
  return {{"rope_type", "linear"}, {"factor", keys.number("rope.scaling.factor").value_or(1.0)}};
}

Json gpt2Configuration(const GgufFile& file, const Keys& keys) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", vocabularyOf(file, keys)},
          {"n_positions", keys.count("context_length")},
          {"n_embd", keys.count("embedding_length")},
          {"n_layer", keys.count("block_count")},
          {"n_head", keys.count("attention.head_count")},
          {"n_inner", keys.count("feed_forward_length")},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", keys.number("attention.layer_norm_epsilon").value_or(1e-5)},
          {"tie_word_embeddings", file.find("output.weight") == nullptr}};
}

Json llamaLikeConfiguration(const GgufFile& file, const Keys& keys) {
  const auto window = keys.integer("attention.sliding_window");
  const bool isMistral = keys.architecture() == "llama" && window.has_value();
  const std::string type = isMistral ? "mistral" : keys.architecture();
  static const std::map<std::string, const char*> architectures = {{"llama", "LlamaForCausalLM"},
                                                                   {"mistral", "MistralForCausalLM"},
                                                                   {"qwen2", "Qwen2ForCausalLM"},
                                                                   {"qwen3", "Qwen3ForCausalLM"}};
  const std::int64_t width = keys.count("embedding_length"), heads = keys.count("attention.head_count");
  if (heads <= 0) keys.fail("has " + std::to_string(heads) + " heads");
  const std::int64_t headSize = keys.integer("attention.key_length").value_or(width / heads);
  if (keys.integer("attention.value_length").value_or(headSize) != headSize ||
      keys.integer("rope.dimension_count").value_or(headSize) != headSize) {
    keys.fail("has heads whose keys, values and rotary positions differ in size, which we do not have");
  }
  if (keys.integer("expert_count").value_or(0) > 0) keys.fail("is a mixture of experts, which we do not have");
  Json object = {{"architectures", {architectures.at(type)}},
                 {"model_type", type},
                 {"vocab_size", vocabularyOf(file, keys)},
                 {"hidden_size", width},
                 {"intermediate_size", keys.count("feed_forward_length")},
                 {"num_hidden_layers", keys.count("block_count")},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", keys.integer("attention.head_count_kv").value_or(heads)},
                 {"head_dim", headSize},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", keys.count("context_length")},
                 {"rms_norm_eps", keys.number("attention.layer_norm_rms_epsilon").value_or(1e-6)},
                 {"rope_theta", keys.number("rope.freq_base").value_or(10000.0)},
                 {"tie_word_embeddings", file.find("output.weight") == nullptr}};
  if (const Json scaling = rotaryScaling(file, keys); !scaling.is_null()) object["rope_scaling"] = scaling;
  if (isMistral) object["sliding_window"] = *window;
  if (type == "llama") {
    object["attention_bias"] = file.find("blk.0.attn_q.bias") != nullptr;
    object["mlp_bias"] = file.find("blk.0.ffn_up.bias") != nullptr;
  }
  return object;
}

Json configurationJson(const GgufFile& file) {
  const Keys keys(file);
  const std::string& name = keys.architecture();
  Json object;
  if (name == "gpt2") {
    object = gpt2Configuration(file, keys);
  } else if (name == "llama" || name == "qwen2" || name == "qwen3") {
    object = llamaLikeConfiguration(file, keys);
  } else {
    keys.fail("is of architecture '" + name + "'; we have gpt2, llama, qwen2 and qwen3");
  }
  for (const auto& [ours, theirs] : {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                     {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                     {"pad_token_id", "tokenizer.ggml.padding_token_id"}}) {
    if (const auto id = file.integer(theirs)) object[ours] = *id;
  }
  return object;
}

// That the factors in the file are those of the configuration that was made of them.
void checkRotaryFactors(const GgufFile& file, const model::Configuration& c) {
  const StoredTensor* const tensor = file.find(rotaryFactors);
  if (tensor == nullptr) return;
  const std::vector<double> expected = c.rotaryFactors();
  std::vector<float> factors(static_cast<std::size_t>(tensor->shape.count()));
  readElements(file, *tensor, 0, tensor->shape.count(), base::DType::f32, reinterpret_cast<std::byte*>(factors.data()));
  const bool alike = std::ranges::equal(
      factors, expected, [](double theirs, double ours) { return std::abs(theirs - ours) <= 1e-4 * std::abs(ours); });
  if (!alike) {
    throw Error(ErrorKind::badData, file.path().string() +
                                        ": the factors of rotary positions in 'rope_freqs.weight' "
                                        "are not those of Llama 3.1's scaling, which we have");
  }
}

}  // namespace

ForeignParts openGguf(const std::filesystem::path& path) {
  auto file = std::make_unique<GgufFile>(path);
  ForeignParts parts;
  parts.place = path;
  parts.metadata.configuration = base::jsonText(configurationJson(*file), 2) + "\n";
  parts.configuration = parseForeignConfiguration(parts.metadata.configuration, "of '" + path.string() + "'");
  checkRotaryFactors(*file, parts.configuration);
  parts.metadata.tokenizer = tokenizerOf(*file);
  parts.metadata.companions = companionsOf(*file);
  parts.layout = ggufLayout(parts.configuration);
  parts.files.push_back(std::move(file));
  return parts;
}

}  // namespace detail

namespace {

using base::Error;
using base::ErrorKind;

std::uint64_t natural(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// The number by which GGUF calls a file mostly of this type.
std::uint64_t fileType(Encoding encoding) {
  switch (encoding) {
    case Encoding::f16:
      return 1;
    case Encoding::q4_0:
      return 2;
    case Encoding::q8_0:
      return 7;
    case Encoding::bf16:
      return 32;
    default:
      return 0;
  }
}

bool isMatrixOfBlocks(const Part& part) { return part.shape.rank() == 2 && part.name != "position_embd.weight"; }

Encoding encodingOfPart(const ModelSource& model, const Parameter& parameter, const Part& part,
                        std::optional<Encoding> type) {
  if (!isMatrixOfBlocks(part)) return Encoding::f32;
  if (!type) return *encodingOf(model.parameter(parameter.name).type);
  const bool isTable = part.name == "token_embd.weight" || part.name == "output.weight";
  const Encoding encoding = *type == Encoding::q4_0 && isTable ? Encoding::q8_0 : *type;
  if (part.shape.last() % blockElements(encoding) != 0) {
    throw Error(ErrorKind::badData, "the rows of '" + part.name + "' " + part.shape.text() +
                                        " are no whole blocks of " + name(encoding) + "; write it as F16");
  }
  return encoding;
}

void addHyperparameters(GgufPairs& pairs, const model::Configuration& c, const std::string& architecture) {
  const auto add = [&](const std::string& key, const GgufValue& value) {
    pairs.emplace_back(architecture + "." + key, value);
  };
  add("block_count", natural(c.layers));
  add("context_length", natural(c.maximumPositions));
  add("embedding_length", natural(c.width));
  add("feed_forward_length", natural(c.mlpWidth));
  add("attention.head_count", natural(c.heads));
  add("attention.head_count_kv", natural(c.kvHeads));
  add("vocab_size", natural(c.vocabularySize));
  const auto epsilon = static_cast<double>(c.normEpsilon);
  if (c.norm == kernels::NormKind::layer) return add("attention.layer_norm_epsilon", epsilon);
  add("attention.layer_norm_rms_epsilon", epsilon);
  add("attention.key_length", natural(c.headSize));
  add("attention.value_length", natural(c.headSize));
  add("rope.dimension_count", natural(c.headSize));
  add("rope.freq_base", c.rotaryBase);
  if (c.slidingWindow > 0) add("attention.sliding_window", natural(c.slidingWindow));
}

// How the frequencies of rotary positions are scaled: not at all, all alike, or each by a factor of its own.
enum class Scaling { none, linear, byPair };
Scaling scalingOf(const std::vector<double>& factors) {
  const auto [least, most] = std::ranges::minmax_element(factors);
  constexpr double rounding = 1e-5;  // the frequencies are float32
  if (factors.empty() || (std::abs(*least - 1) < rounding && std::abs(*most - 1) < rounding)) return Scaling::none;
  return *most - *least < rounding * *most ? Scaling::linear : Scaling::byPair;
}

// A tensor of the file: a part of a parameter, or numbers of our own.
struct Output {
  const Parameter* parameter = nullptr;
  const Part* part = nullptr;
};

}  // namespace

void writeGguf(const ModelSource& model, const std::filesystem::path& file, const GgufOptions& options,
               comm::Communicator& communicator) {
  const model::Configuration& c = model.configuration();
  const std::string architecture = c.type == "mistral" ? "llama" : c.type;
  std::vector<Parameter> layout;
  std::vector<detail::OutputFile> files(1);
  std::map<std::string, Output> outputs;
  std::vector<float> factors;
  comm::agreeOn(communicator, [&] {
    if (std::filesystem::exists(file)) {
      throw Error(ErrorKind::usage, "the output '" + file.string() + "' exists: choose another, or remove it");
    }
    layout = ggufLayout(c);
    std::vector<NewTensor> tensors;
    for (const Parameter& parameter : layout) {
      for (const Part& part : parameter.parts) {
        outputs[part.name] = {&parameter, &part};
        tensors.push_back({part.name, encodingOfPart(model, parameter, part, options.type), part.shape});
      }
    }
    const Encoding mostly = options.type.value_or(*encodingOf(model.parameters().front().type));
    GgufPairs pairs = {{"general.architecture", architecture},
                       {"general.type", std::string("model")},
                       {"general.file_type", fileType(mostly)},
                       {"general.quantization_version", std::uint64_t{2}}};
    addHyperparameters(pairs, c, architecture);
    const std::vector<double> exact = c.rotaryFactors();
    const Scaling scaling = scalingOf(exact);
    if (scaling == Scaling::linear) {
      pairs.emplace_back(architecture + ".rope.scaling.type", std::string("linear"));
      pairs.emplace_back(architecture + ".rope.scaling.factor", exact.front());
    } else if (scaling == Scaling::byPair) {
      factors.assign(exact.begin(), exact.end());
      tensors.insert(tensors.begin(), {"rope_freqs.weight", Encoding::f32, {std::ssize(factors)}});
    }
    detail::addTokenizer(pairs, model);
    files.front() = {file, layOutGguf(pairs, tensors)};
    if (communicator.rank() == 0 && file.has_parent_path()) base::createFolders(file.parent_path());
  });
  detail::writeTensorFiles(communicator, files, [&](const StoredTensor& tensor, detail::Sink& sink) {
    const auto found = outputs.find(tensor.name);
    if (found == outputs.end()) return sink.put(std::as_bytes(std::span(factors)));
    detail::writePart(model, *found->second.parameter, *found->second.part, *tensor.encoding, sink);
  });
}

}  // namespace tandem::checkpoint
