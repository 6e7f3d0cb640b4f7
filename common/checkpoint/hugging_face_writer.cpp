// Writing a Hugging Face folder.

#include <algorithm>
#include <cstdio>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/checkpoint/detail/tensor_output.h"
#include "common/checkpoint/hugging_face.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;
using Json = nlohmann::ordered_json;

// A tensor to write, and what of ours it is.
struct OutputTensor {
  const Parameter* parameter;
  const Part* part;
  NewTensor tensor;
};

std::vector<OutputTensor> piecesOf(const ModelSource& model, const std::vector<Parameter>& layout,
                                   std::optional<Encoding> type) {
  std::vector<OutputTensor> pieces;
  for (const Parameter& parameter : layout) {
    const Encoding encoding = type.value_or(*encodingOf(model.parameter(parameter.name).type));
    for (const Part& part : parameter.parts) {
      pieces.push_back({&parameter, &part, {part.name, encoding, part.shape}});
    }
  }
  return pieces;
}

std::int64_t bytesOf(const NewTensor& tensor) { return encodedBytes(tensor.encoding, tensor.shape.count()); }

// Tensors in their order, a new file beginning where one would become too large.
std::vector<std::vector<NewTensor>> divide(const std::vector<OutputTensor>& pieces, std::int64_t largestFile) {
  std::vector<std::vector<NewTensor>> files(1);
  std::int64_t bytes = 0;
  for (const OutputTensor& piece : pieces) {
    const std::int64_t more = bytesOf(piece.tensor);
    if (!files.back().empty() && bytes + more > largestFile) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(piece.tensor);
    bytes += more;
  }
  return files;
}

std::string fileName(std::size_t number, std::size_t files) {
  if (files == 1) return safetensorsName;
  char text[80];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", number + 1, files);
  return text;
}

std::string indexText(const std::vector<std::vector<NewTensor>>& files) {
  std::map<std::string, std::string> places;
  std::int64_t bytes = 0, elements = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const NewTensor& tensor : files[i]) {
      places[tensor.name] = fileName(i, files.size());
      bytes += bytesOf(tensor);
      elements += tensor.shape.count();
    }
  }
  const Json index = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}}, {"weight_map", places}};
  return base::jsonText(index, 2) + "\n";
}

const char* architecture(const std::string& type) {
  static const std::map<std::string, const char*> names = {{"gpt2", "GPT2LMHeadModel"},
                                                           {"llama", "LlamaForCausalLM"},
                                                           {"mistral", "MistralForCausalLM"},
                                                           {"qwen2", "Qwen2ForCausalLM"},
                                                           {"qwen3", "Qwen3ForCausalLM"}};
  return names.at(type);
}

void setDefault(Json& object, const char* key, const Json& value) {
  if (!object.contains(key)) object[key] = value;
}

// The tokenizer is read when it is asked for first: a large one takes as long as writing some hundred megabytes, and of
// an imported model the texts beside it say the same.
class SpecialTokens {
 public:
  explicit SpecialTokens(const std::string& tokenizerText) : text_(tokenizerText) {}

  // Nothing where we have none, or one of a kind that we do not read.
  const std::optional<tokenizer::Tokenizer>& tokens() {
    if (isRead_ || text_.empty()) return tokens_;
    isRead_ = true;
    try {
      tokens_.emplace(tokenizer::fromJson(text_, "the model's tokenizer"));
    } catch (const Error& error) {
      TANDEM_LOG(warning) << error.message() << ": it is written as it is";
    }
    return tokens_;
  }
  Json begin() { return tokens() ? id(tokens()->beginToken()) : Json(nullptr); }
  Json end() { return tokens() ? id(tokens()->endToken()) : Json(nullptr); }

 private:
  static Json id(std::optional<tokenizer::TokenId> token) { return token ? Json(*token) : Json(nullptr); }

  const std::string& text_;
  bool isRead_ = false;
  std::optional<tokenizer::Tokenizer> tokens_;
};

// The configuration of an imported model as it came. One of ours says only what differs from our defaults; here it also
// says what other programs have another default for.
std::string configurationText(const ModelSource& model, SpecialTokens& special, const std::vector<OutputTensor>& pieces,
                              bool typeChanged) {
  const model::Configuration& c = model.configuration();
  Json object = base::parseOrderedJson(model.metadata().configuration);
  const bool imported = object.contains("architectures");
  if (imported && !typeChanged) return model.metadata().configuration;
  const char* const typeKey = object.contains("dtype") ? "dtype" : "torch_dtype";
  object[typeKey] = base::name(*plainType(pieces.front().tensor.encoding));
  if (imported) return base::jsonText(object, 2) + "\n";
  object["architectures"] = {architecture(c.type)};
  setDefault(object, "bos_token_id", special.begin());
  setDefault(object, "eos_token_id", special.end());
  setDefault(object, "tie_word_embeddings", c.tiedEmbeddings);
  if (c.type == "gpt2") return base::jsonText(object, 2) + "\n";
  setDefault(object, "num_key_value_heads", c.kvHeads);
  setDefault(object, "head_dim", c.headSize);
  setDefault(object, "hidden_act", "silu");
  setDefault(object, "rms_norm_eps", 1e-6);
  if (!object.contains("rope_parameters")) setDefault(object, "rope_theta", 10000.0);
  if (c.type == "mistral") setDefault(object, "sliding_window", nullptr);
  return base::jsonText(object, 2) + "\n";
}

Json textOf(SpecialTokens& special, const Json& id) {
  if (id.is_null()) return nullptr;
  return std::string(special.tokens()->tokenBytes(id.get<tokenizer::TokenId>()));
}

// The texts beside the weights, by the names of their files.
std::map<std::string, std::string> textsOf(const ModelSource& model, const std::vector<OutputTensor>& pieces,
                                           bool typeChanged) {
  std::map<std::string, std::string> texts;
  SpecialTokens special(model.metadata().tokenizer);
  texts[configurationName] = configurationText(model, special, pieces, typeChanged);
  if (!model.metadata().tokenizer.empty()) texts[tokenizerName] = model.metadata().tokenizer;
  if (!model.metadata().companions.empty()) {
    const Json companions = base::parseOrderedJson(model.metadata().companions);
    for (const char* name : companionNames) {
      if (companions.contains(name)) texts[name] = companions[name].get<std::string>();
    }
  }
  constexpr const char *generation = "generation_config.json", *settings = "tokenizer_config.json";
  const bool isComplete = texts.contains(generation) && texts.contains(settings);
  if (isComplete || !special.tokens()) return texts;
  const Json ends = {{"bos_token_id", special.begin()}, {"eos_token_id", special.end()}};
  texts.try_emplace(generation, base::jsonText(ends, 2) + "\n");
  const Json tokenizer = {{"bos_token", textOf(special, special.begin())},
                          {"clean_up_tokenization_spaces", false},
                          {"eos_token", textOf(special, special.end())},
                          {"model_max_length", model.configuration().maximumPositions},
                          {"tokenizer_class", "PreTrainedTokenizerFast"}};
  texts.try_emplace(settings, base::jsonText(tokenizer, 2) + "\n");
  return texts;
}

void beginFolder(const fs::path& folder, const fs::path& partial) {
  if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder))) {
    throw Error(ErrorKind::usage, "the output '" + folder.string() + "' exists: choose another, or remove it");
  }
  fs::remove_all(partial);
  base::createFolders(partial);
}

void renameFolder(const fs::path& partial, const fs::path& folder) {
  std::error_code failure;
  fs::rename(partial, folder, failure);
  if (failure) {
    throw Error(ErrorKind::file, "cannot give the folder " + folder.string() + " its name: " + failure.message());
  }
  base::syncFolder(folder.parent_path().empty() ? "." : folder.parent_path());
}

}  // namespace

void writeHuggingFace(const ModelSource& model, const fs::path& target, const HuggingFaceOptions& options,
                      comm::Communicator& communicator) {
  const fs::path folder = target.has_filename() ? target : target.parent_path();
  const fs::path partial = folder.string() + ".partial";
  const bool isRoot = communicator.rank() == 0;
  const std::vector<Parameter> layout = huggingFaceLayout(model.configuration());
  const std::vector<OutputTensor> pieces = piecesOf(model, layout, options.type);
  const std::vector<std::vector<NewTensor>> divided = divide(pieces, options.largestFile);
  std::vector<detail::OutputFile> files;
  std::map<std::string, const OutputTensor*> byName;
  for (const OutputTensor& piece : pieces) byName[piece.tensor.name] = &piece;
  for (std::size_t i = 0; i < divided.size(); ++i) {
    files.push_back({partial / fileName(i, divided.size()), layOutSafetensors(divided[i], {{"format", "pt"}})});
  }
  comm::agreeOn(communicator, [&] {
    if (isRoot) beginFolder(folder, partial);
  });
  std::future<std::map<std::string, std::string>> texts;
  if (isRoot) {
    texts = std::async(std::launch::async, [&] { return textsOf(model, pieces, options.type.has_value()); });
  }
  try {
    detail::writeTensorFiles(communicator, files, [&](const StoredTensor& tensor, detail::Sink& sink) {
      const OutputTensor& piece = *byName.at(tensor.name);
      detail::writePart(model, *piece.parameter, *piece.part, piece.tensor.encoding, sink);
    });
    comm::agreeOn(communicator, [&] {
      if (!isRoot) return;
      if (divided.size() > 1) base::replaceFile(partial / safetensorsIndexName, indexText(divided));
      for (const auto& [name, text] : texts.get()) {
        base::replaceFile(partial / name, text);
      }
      renameFolder(partial, folder);
    });
  } catch (...) {
    std::error_code ignored;
    if (isRoot) fs::remove_all(partial, ignored);
    throw;
  }
}

}  // namespace tandem::checkpoint
