#include "common/model/configuration.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"

namespace tandem::model {
namespace {

using base::Error;
using base::ErrorKind;
using nlohmann::json;

// Fields that say nothing about what we compute: bookkeeping, and settings of other programs.
const std::set<std::string> ignoredFields = {"architectures",
                                             "torch_dtype",
                                             "dtype",
                                             "transformers_version",
                                             "bos_token_id",
                                             "eos_token_id",
                                             "pad_token_id",
                                             "use_cache",
                                             "attn_pdrop",
                                             "embd_pdrop",
                                             "resid_pdrop",
                                             "attention_dropout",
                                             "summary_activation",
                                             "summary_first_dropout",
                                             "summary_proj_to_labels",
                                             "summary_type",
                                             "summary_use_proj",
                                             "task_specific_params",
                                             "pretraining_tp",
                                             "_name_or_path",
                                             "name_or_path",
                                             "n_ctx",
                                             "is_llama_config",
                                             "rope_interleaved",
                                             "transformers.js_config",
                                             "reorder_and_upcast_attn",
                                             "auto_map",
                                             "_model_name_or_path",
                                             "unk_token_id",
                                             "_attn_implementation_autoset",
                                             "add_cross_attention",
                                             "chunk_size_feed_forward",
                                             "is_decoder",
                                             "output_attentions",
                                             "output_hidden_states",
                                             "return_dict",
                                             "comment"};

// The largest sizes that are taken for more than typing errors. They keep the bytes of all parameters, and every sum on
// the way to them, far within 64 bits, and a program of so many layers can still be held.
constexpr std::int64_t mostLayers = 4096;
constexpr std::int64_t mostWidth = std::int64_t{1} << 20;
constexpr std::int64_t mostMlpWidth = std::int64_t{1} << 24;
constexpr std::int64_t mostHeads = 4096;
constexpr std::int64_t mostHeadSize = 4096;
constexpr std::int64_t mostPositions = INT32_MAX;
constexpr std::int64_t mostVocabulary = INT32_MAX;

// Reads fields by name and remembers which were asked for, so that what is left over is a typing error.
class Fields {
 public:
  Fields(const json& object, std::string origin) : object_(object), origin_(std::move(origin)) {}

  [[noreturn]] void fail(const std::string& field, const std::string& reason) const {
    throw Error(ErrorKind::usage, "model configuration " + origin_ + ": field '" + field + "' " + reason);
  }

  bool has(const std::string& field) {
    known_.insert(field);
    return object_.contains(field) && !object_[field].is_null();
  }

  std::string text(const std::string& field, const std::string& otherwise) {
    if (!has(field)) return otherwise;
    if (!object_[field].is_string()) fail(field, "must be a text");
    return object_[field].get<std::string>();
  }

  bool flag(const std::string& field, bool otherwise) {
    if (!has(field)) return otherwise;
    if (!object_[field].is_boolean()) fail(field, "must be true or false");
    return object_[field].get<bool>();
  }

  double number(const std::string& field, double otherwise) {
    if (!has(field)) return otherwise;
    if (!object_[field].is_number()) fail(field, "must be a number");
    return object_[field].get<double>();
  }

  double positive(const std::string& field, double otherwise) {
    const double value = number(field, otherwise);
    if (!(value > 0) || value > std::numeric_limits<float>::max()) fail(field, "must be above 0, and fit into 32 bits");
    return value;
  }

  std::int64_t count(const std::string& field, std::int64_t most, std::int64_t otherwise) {
    return has(field) ? count(field, most) : otherwise;
  }

  // A whole number from 1 to `most`, which must be there.
  std::int64_t count(const std::string& field, std::int64_t most) {
    if (!has(field)) fail(field, "is missing");
    const json& value = object_[field];
    if (!value.is_number_integer()) fail(field, "must be a whole number");
    const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
    if (!fits || value == 0)
      fail(field, "is " + base::jsonText(value) + "; it must be from 1 to " + std::to_string(most));
    return value.get<std::int64_t>();
  }

  const json& list(const std::string& field) {
    if (!object_[field].is_array()) fail(field, "must be a list");
    return object_[field];
  }

  const json& object(const std::string& field) {
    if (!object_[field].is_object()) fail(field, "must be an object");
    return object_[field];
  }

  void demand(bool holds, const std::string& field, const std::string& reason) const {
    if (!holds) fail(field, reason);
  }

  void refuseUnknown() const {
    for (const auto& [field, value] : object_.items()) {
      if (!known_.contains(field) && !ignoredFields.contains(field)) {
        fail(field, "is not known for this model_type; is it misspelt?");
      }
    }
  }

  const std::string& origin() const { return origin_; }

 private:
  const json& object_;
  std::string origin_;
  std::set<std::string> known_;
};

double unscaledFrequency(double theta, std::int64_t pair, std::int64_t headSize) {
  return std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(headSize));
}

// Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended
// (as published with the Llama 3.1 models).
double scaledFrequency(double frequency, Fields& scaling) {
  const double factor = scaling.positive("factor", 1);
  const double low = scaling.number("low_freq_factor", 1), high = scaling.number("high_freq_factor", 4);
  const double original = scaling.number("original_max_position_embeddings", 8192);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / low) return frequency / factor;
  if (wavelength < original / high) return frequency;
  const double blend = (original / wavelength - low) / (high - low);
  return (1 - blend) * frequency / factor + blend * frequency;
}

void readRotary(Fields& fields, Configuration& c) {
  double theta = fields.positive("rope_theta", 10000);
  std::string type = "default";
  const json empty = json::object();
  const json* scalingObject = &empty;
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    if (fields.has(field)) scalingObject = &fields.object(field);
  }
  Fields scaling(*scalingObject, fields.origin() + ", rope scaling");
  theta = scaling.positive("rope_theta", theta);
  type = scaling.text("rope_type", scaling.text("type", "default"));
  if (type != "default" && type != "linear" && type != "llama3") {
    scaling.fail("rope_type", "is '" + type + "'; we have default, linear and llama3");
  }
  const double linearFactor = type == "linear" ? scaling.positive("factor", 1) : 1;
  c.rotaryBase = theta;
  for (std::int64_t i = 0; i < c.headSize / 2; ++i) {
    const double base = unscaledFrequency(theta, i, c.headSize);
    const double frequency = type == "llama3" ? scaledFrequency(base, scaling) : base / linearFactor;
    if (!(std::abs(frequency) <= std::numeric_limits<float>::max())) {
      scaling.fail("rope_type", "'" + type + "' gives a frequency that is no number with these factors");
    }
    c.rotaryFrequencies.push_back(static_cast<float>(frequency));
  }
}

void readGpt2(Fields& fields, Configuration& c) {
  c.width = fields.count("n_embd", mostWidth);
  c.layers = fields.count("n_layer", mostLayers);
  c.heads = c.kvHeads = fields.count("n_head", mostHeads);
  fields.demand(c.width % c.heads == 0, "n_head", "must divide n_embd = " + std::to_string(c.width));
  c.headSize = c.width / c.heads;
  c.mlpWidth = fields.count("n_inner", mostMlpWidth, 4 * c.width);
  c.maximumPositions = fields.count("n_positions", mostPositions);
  c.norm = kernels::NormKind::layer;
  c.normEpsilon = static_cast<float>(fields.positive("layer_norm_epsilon", 1e-5));
  const std::string activation = fields.text("activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    c.activation = kernels::ActivationKind::geluTanh;
  } else if (activation == "gelu") {
    c.activation = kernels::ActivationKind::geluErf;
  } else if (activation == "relu2") {
    c.activation = kernels::ActivationKind::relu2;
  } else {
    fields.fail("activation_function", "is '" + activation + "'; we have gelu_new, gelu_pytorch_tanh, gelu and relu2");
  }
  c.learnedPositions = c.qkvBias = c.outputBias = c.mlpBias = true;
  c.tiedEmbeddings = fields.flag("tie_word_embeddings", true);
  fields.demand(fields.flag("scale_attn_weights", true), "scale_attn_weights", "must be true");
  fields.demand(!fields.flag("scale_attn_by_inverse_layer_idx", false), "scale_attn_by_inverse_layer_idx",
                "must be false");
}

// The window of every layer; 0: none. A model whose layers differ in it is refused, as are all things we do not have.
std::int64_t slidingWindow(Fields& fields, const Configuration& c) {
  const std::int64_t given = fields.count("sliding_window", mostPositions, 0);
  const double firstLayer = fields.number("max_window_layers", 0);  // of those with a window
  const std::int64_t window = fields.flag("use_sliding_window", c.type == "mistral") ? given : 0;
  if (!fields.has("layer_types")) {
    if (window == 0 || firstLayer >= static_cast<double>(c.layers)) return 0;
    fields.demand(firstLayer <= 0, "max_window_layers", "must be 0: we have one window for all layers");
    return window;
  }
  std::int64_t withWindow = 0;
  for (const json& type : fields.list("layer_types")) {
    fields.demand(type == "sliding_attention" || type == "full_attention", "layer_types",
                  "has '" + base::jsonText(type) + "'; we have full_attention and sliding_attention");
    withWindow += type == "sliding_attention" ? 1 : 0;
  }
  if (withWindow == 0) return 0;
  fields.demand(withWindow == c.layers, "layer_types", "must be the same for all layers: we have one window for all");
  fields.demand(window > 0, "layer_types", "has sliding_attention, but there is no sliding_window in use");
  return window;
}

void readLlamaLike(Fields& fields, Configuration& c) {
  c.width = fields.count("hidden_size", mostWidth);
  c.layers = fields.count("num_hidden_layers", mostLayers);
  c.heads = fields.count("num_attention_heads", mostHeads);
  c.kvHeads = fields.count("num_key_value_heads", mostHeads, c.heads);
  fields.demand(c.heads % c.kvHeads == 0, "num_key_value_heads",
                "must divide num_attention_heads = " + std::to_string(c.heads));
  if (!fields.has("head_dim")) {
    fields.demand(c.width % c.heads == 0, "num_attention_heads",
                  "must divide hidden_size = " + std::to_string(c.width));
  }
  c.headSize = fields.count("head_dim", mostHeadSize, c.width / c.heads);
  fields.demand(c.headSize % 2 == 0, "head_dim", "must be even, since rotary positions turn pairs");
  c.mlpWidth = fields.count("intermediate_size", mostMlpWidth);
  c.maximumPositions = fields.count("max_position_embeddings", mostPositions);
  c.norm = kernels::NormKind::rms;
  c.normEpsilon = static_cast<float>(fields.positive("rms_norm_eps", 1e-6));
  const std::string activation = fields.text("hidden_act", "silu");
  fields.demand(activation == "silu", "hidden_act", "is '" + activation + "'; we have silu");
  c.activation = kernels::ActivationKind::swiglu;
  c.queryKeyNorm = c.type == "qwen3";
  const bool attentionBias = fields.flag("attention_bias", false);
  c.qkvBias = c.type == "qwen2" || attentionBias;
  c.outputBias = c.type != "qwen2" && attentionBias;
  c.mlpBias = fields.flag("mlp_bias", false);
  c.tiedEmbeddings = fields.flag("tie_word_embeddings", false);
  c.slidingWindow = slidingWindow(fields, c);
  readRotary(fields, c);
}

}  // namespace

std::vector<double> Configuration::rotaryFactors() const {
  std::vector<double> factors;
  for (std::size_t i = 0; i < rotaryFrequencies.size(); ++i) {
    factors.push_back(unscaledFrequency(rotaryBase, static_cast<std::int64_t>(i), headSize) /
                      static_cast<double>(rotaryFrequencies[i]));
  }
  return factors;
}

Configuration parseConfiguration(const std::string& text, const std::string& origin) {
  json object;
  base::refuseDeepNesting(text, ErrorKind::usage, "model configuration " + origin);
  try {
    object = base::parseJson(text);
  } catch (const json::exception& e) {
    throw Error(ErrorKind::usage, "model configuration " + origin + " is no JSON: " + e.what());
  }
  if (!object.is_object()) throw Error(ErrorKind::usage, "model configuration " + origin + " is no JSON object");
  Fields fields(object, origin);
  Configuration c;
  c.json = text;
  c.type = fields.text("model_type", "");
  c.vocabularySize = fields.count("vocab_size", mostVocabulary);
  c.initializerRange = static_cast<float>(fields.positive("initializer_range", 0.02));
  if (c.type == "gpt2") {
    readGpt2(fields, c);
  } else if (c.type == "llama" || c.type == "mistral" || c.type == "qwen2" || c.type == "qwen3") {
    readLlamaLike(fields, c);
  } else {
    fields.fail("model_type", "is '" + c.type + "'; we have gpt2, llama, mistral, qwen2 and qwen3");
  }
  fields.refuseUnknown();
  return c;
}

Configuration readConfiguration(const std::string& path) {
  return parseConfiguration(base::readFile(path), "'" + path + "'");
}

}  // namespace tandem::model
