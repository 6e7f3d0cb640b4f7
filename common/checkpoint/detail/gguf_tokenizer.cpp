#include "common/checkpoint/detail/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::checkpoint::detail {
namespace {

using base::Error;
using base::ErrorKind;
using nlohmann::json;
using tokenizer::Pattern;

// What a file calls a way of cutting words, with what goes with it there.
struct WordCutting {
  const char* name;
  Pattern pattern;
  bool ignoresMerges;
  bool normalizesToC;
};
// Written is the first that fits.
constexpr std::array<WordCutting, 13> cuttings = {{{"gpt-2", Pattern::gpt2, false, false},
                                                   {"smollm", Pattern::gpt2Digits, false, false},
                                                   {"llama-bpe", Pattern::llama3, true, false},
                                                   {"dbrx", Pattern::llama3, false, false},
                                                   {"llama-bpe", Pattern::cl100k, true, false},
                                                   {"dbrx", Pattern::cl100k, false, false},
                                                   {"qwen2", Pattern::qwen2, false, true},
                                                   {"qwen2", Pattern::qwen2, false, false},
                                                   {"gpt-4o", Pattern::o200k, false, false},
                                                   {"llama3", Pattern::llama3, true, false},
                                                   {"llama-v3", Pattern::llama3, true, false},
                                                   {"gpt2", Pattern::gpt2, false, false},
                                                   {"deepseek-r1-qwen", Pattern::qwen2, false, true}}};

// Kinds of tokens, by their numbers.
constexpr std::int64_t ordinary = 1, control = 3, userDefined = 4, unused = 5;

json addedToken(std::int64_t id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

json withBeginToken(const std::string& begin, std::int64_t id) {
  const json piece = {{"SpecialToken", {{"id", begin}, {"type_id", 0}}}};
  const auto text = [](const char* name, int part) { return json{{"Sequence", {{"id", name}, {"type_id", part}}}}; };
  return {{"type", "TemplateProcessing"},
          {"single", {piece, text("A", 0)}},
          {"pair", {piece, text("A", 0), piece, text("B", 1)}},
          {"special_tokens", {{begin, {{"id", begin}, {"ids", {id}}, {"tokens", {begin}}}}}}};
}

// The text of the token at a key; empty when there is none.
std::string tokenAt(const GgufFile& file, const char* key) {
  const auto id = file.integer(key);
  const auto* const tokens = file.texts("tokenizer.ggml.tokens");
  if (!id || tokens == nullptr || *id < 0 || *id >= std::ssize(*tokens)) return {};
  return (*tokens)[static_cast<std::size_t>(*id)];
}

// Of all tokens but the unused ones at the end, which only fill up the table of embeddings.
json tokenizerJson(const GgufFile& file, const WordCutting& cutting) {
  const auto* const tokens = file.texts("tokenizer.ggml.tokens");
  const auto* const merges = file.texts("tokenizer.ggml.merges");
  const auto* const kinds = file.integers("tokenizer.ggml.token_type");
  const std::string place = file.path().string() + ": ";
  if (tokens == nullptr || merges == nullptr) {
    throw Error(ErrorKind::badData, place + "its tokenizer has no lists of texts 'tokens' and 'merges'");
  }
  if (kinds != nullptr && kinds->size() != tokens->size()) {
    throw Error(ErrorKind::badData, place + "its tokenizer has " + std::to_string(tokens->size()) + " tokens, but " +
                                        std::to_string(kinds->size()) + " kinds");
  }
  const auto kind = [&](std::size_t id) { return kinds == nullptr ? ordinary : (*kinds)[id]; };
  std::size_t size = tokens->size();
  while (size > 0 && kind(size - 1) == unused) --size;
  tokenizer::Definition empty;
  empty.pattern = cutting.pattern;
  empty.ignoresMerges = cutting.ignoresMerges;
  empty.normalizesToC = cutting.normalizesToC;
  json object = base::parseJson(tokenizer::writeTokenizerJson(empty));
  json& vocabulary = object["model"]["vocab"];
  for (std::size_t id = 0; id < size; ++id) {
    vocabulary[(*tokens)[id]] = id;
    const std::int64_t each = kind(id);
    if (each != control && each != userDefined) continue;
    object["added_tokens"].push_back(addedToken(static_cast<std::int64_t>(id), (*tokens)[id], each == control));
  }
  object["model"]["merges"] = *merges;
  const std::string begin = tokenAt(file, "tokenizer.ggml.bos_token_id");
  // Llama 3's way of cutting words brings the begin token with it unless the file says otherwise.
  if (!begin.empty() && file.flag("tokenizer.ggml.add_bos_token").value_or(cutting.ignoresMerges)) {
    object["post_processor"] = withBeginToken(begin, *file.integer("tokenizer.ggml.bos_token_id"));
  }
  return object;
}

// An id that a configuration has, a list's first.
json idIn(const json& configuration, const char* key) {
  if (!configuration.contains(key)) return nullptr;
  const json& value = configuration[key];
  const json& id = value.is_array() && !value.empty() ? value[0] : value;
  return id.is_number_unsigned() ? id : json(nullptr);
}

std::string chatTemplateOf(const json& companions) {
  if (companions.contains("chat_template.jinja")) return companions["chat_template.jinja"].get<std::string>();
  if (!companions.contains("tokenizer_config.json")) return {};
  const json settings = base::parseJsonOrDiscard(companions["tokenizer_config.json"].get<std::string>());
  const bool has = settings.is_object() && settings.contains("chat_template") && settings["chat_template"].is_string();
  return has ? settings["chat_template"].get<std::string>() : "";
}

std::vector<std::string> mergeTexts(const json& merges) {
  std::vector<std::string> texts;
  for (const json& merge : merges) {
    texts.push_back(merge.is_string() ? merge.get<std::string>()
                                      : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return texts;
}

// Tokens and kinds; ids that no token has are filled up to the size of the model's vocabulary.
void addTokens(GgufPairs& pairs, const json& object, std::int64_t vocabularySize) {
  std::vector<std::string> tokens(static_cast<std::size_t>(vocabularySize));
  std::vector<std::int64_t> kinds(tokens.size(), unused);
  const auto set = [&](const std::string& text, const json& id, std::int64_t kind) {
    const auto place = id.get<std::size_t>();
    if (place >= tokens.size()) {
      throw Error(ErrorKind::badData, "the tokenizer has a token " + std::to_string(place) + ", the model only " +
                                          std::to_string(vocabularySize));
    }
    tokens[place] = text;
    kinds[place] = kind;
  };
  for (const auto& [text, id] : object["model"]["vocab"].items()) set(text, id, ordinary);
  for (const json& added : object["added_tokens"]) {
    set(added["content"], added["id"], added["special"].get<bool>() ? control : userDefined);
  }
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (kinds[id] == unused) tokens[id] = "[PAD" + std::to_string(id) + "]";
  }
  pairs.emplace_back("tokenizer.ggml.tokens", std::move(tokens));
  pairs.emplace_back("tokenizer.ggml.token_type", std::move(kinds));
}

const WordCutting* cuttingOf(const tokenizer::Definition& definition) {
  const auto* const found = std::ranges::find_if(cuttings, [&](const WordCutting& each) {
    return each.pattern == definition.pattern && each.ignoresMerges == definition.ignoresMerges &&
           each.normalizesToC == definition.normalizesToC;
  });
  return found == cuttings.end() ? nullptr : found;
}

std::optional<tokenizer::Tokenizer> readableTokenizer(const ModelSource& model) {
  try {
    if (!model.metadata().tokenizer.empty()) {
      return tokenizer::fromJson(model.metadata().tokenizer, "the model's tokenizer");
    }
    TANDEM_LOG(warning) << "the model has no tokenizer: the file has none, and only token ids can be given to it";
  } catch (const Error& error) {
    TANDEM_LOG(warning) << error.message() << ": the file has no tokenizer, and only token ids can be given to it";
  }
  return std::nullopt;
}

// Why a tokenizer that a file calls so is not read.
std::string reasonAgainst(const std::string& model, const std::string& cutting) {
  if (model == "llama") {
    return "its tokenizer 'llama' is one of SentencePiece, which joins pieces by scores (Llama 2, Mistral); only "
           "byte-level BPE is read";
  }
  if (model != "gpt2") return "its tokenizer is '" + model + "'; only byte-level BPE is read";
  return "its tokenizer cuts words by '" + cutting + "', which we do not have";
}

}  // namespace

std::string tokenizerOf(const GgufFile& file) {
  const std::string model = file.text("tokenizer.ggml.model").value_or("");
  const std::string name = file.text("tokenizer.ggml.pre").value_or("");
  const auto* const cutting =
      std::ranges::find_if(cuttings, [&](const WordCutting& each) { return name == each.name; });
  if (model != "gpt2" || cutting == cuttings.end()) {
    TANDEM_LOG(warning) << file.path().string() << ": " << reasonAgainst(model, name)
                        << ": the model is read without one, and only token ids can be given to it";
    return {};
  }
  try {
    return tokenizer::fromJson(base::jsonText(tokenizerJson(file, *cutting)), file.path().string()).json();
  } catch (const json::exception&) {
    throw Error(ErrorKind::badData, file.path().string() + ": its tokenizer holds a text that is not UTF-8");
  }
}

std::string companionsOf(const GgufFile& file) {
  nlohmann::ordered_json settings = nlohmann::ordered_json::object(), generation = nlohmann::ordered_json::object();
  for (const auto& [name, key] : {std::pair{"bos_token", "tokenizer.ggml.bos_token_id"},
                                  {"eos_token", "tokenizer.ggml.eos_token_id"},
                                  {"pad_token", "tokenizer.ggml.padding_token_id"},
                                  {"unk_token", "tokenizer.ggml.unknown_token_id"}}) {
    const std::string text = tokenAt(file, key);
    if (text.empty()) continue;
    settings[name] = text;
    if (std::string(name) != "unk_token") generation[std::string(name) + "_id"] = *file.integer(key);
  }
  settings["tokenizer_class"] = "PreTrainedTokenizerFast";
  json companions = json::object();
  try {
    companions["tokenizer_config.json"] = base::jsonText(settings, 2) + "\n";
    companions["generation_config.json"] = base::jsonText(generation, 2) + "\n";
    if (const auto chat = file.text("tokenizer.chat_template")) companions["chat_template.jinja"] = *chat;
    return base::jsonText(companions);
  } catch (const json::exception&) {
    throw Error(ErrorKind::badData, file.path().string() + ": its tokenizer holds a text that is not UTF-8");
  }
}

void addTokenizer(GgufPairs& pairs, const ModelSource& model) {
  const auto tokens = readableTokenizer(model);
  const WordCutting* const cutting = tokens ? cuttingOf(tokens->definition()) : nullptr;
  if (cutting == nullptr) {
    if (tokens) {
      TANDEM_LOG(warning) << "GGUF has no name for the way the tokenizer cuts words: the file has no tokenizer";
    }
    pairs.emplace_back("tokenizer.ggml.model", std::string("none"));
    return;
  }
  const json object = base::parseJson(tokens->json());
  pairs.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
  pairs.emplace_back("tokenizer.ggml.pre", std::string(cutting->name));
  addTokens(pairs, object, model.configuration().vocabularySize);
  pairs.emplace_back("tokenizer.ggml.merges", mergeTexts(object["model"]["merges"]));

  const json configuration = base::parseJson(model.metadata().configuration);
  const std::string& companionsText = model.metadata().companions;
  const json companions = companionsText.empty() ? json::object() : base::parseJson(companionsText);
  const auto addId = [&](const char* key, const char* field, std::optional<tokenizer::TokenId> otherwise) {
    json id = idIn(configuration, field);
    if (id.is_null() && otherwise) id = *otherwise;
    if (!id.is_null()) pairs.emplace_back(key, id.get<std::uint64_t>());
  };
  addId("tokenizer.ggml.bos_token_id", "bos_token_id", tokens->beginToken());
  addId("tokenizer.ggml.eos_token_id", "eos_token_id", tokens->endToken());
  addId("tokenizer.ggml.padding_token_id", "pad_token_id", std::nullopt);
  // Of ours, every document begins with its begin token.
  const bool isOurs = companionsText.empty() && !configuration.contains("architectures");
  pairs.emplace_back("tokenizer.ggml.add_bos_token",
                     tokens->definition().templateBegin.has_value() || (isOurs && tokens->beginToken().has_value()));
  pairs.emplace_back("tokenizer.ggml.add_space_prefix", false);
  if (const std::string chat = chatTemplateOf(companions); !chat.empty()) {
    pairs.emplace_back("tokenizer.chat_template", chat);
  }
}

}  // namespace tandem::checkpoint::detail
