#include "apps/tokenize/inspect.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/tokenize/load_tokenizer.h"
#include "common/base/error.h"
#include "common/base/json.h"
#include "common/data/dataset.h"

namespace tandem::app {
namespace {

struct Settings {
  std::string path;
  std::string pattern;
};

nlohmann::ordered_json describeTokenizer(const tokenizer::Tokenizer& tokenizer) {
  const tokenizer::Definition& definition = tokenizer.definition();
  nlohmann::ordered_json special = nlohmann::json::array();
  for (const tokenizer::AddedToken& added : definition.addedTokens) {
    special.push_back({{"id", added.id}, {"text", definition.tokens[added.id].bytes}, {"special", added.special}});
  }
  nlohmann::ordered_json result = {{"vocabulary_size", tokenizer.vocabularySize()},
                                   {"merges", definition.merges.size()},
                                   {"pattern", tokenizer::name(tokenizer.pattern())},
                                   {"nfc", definition.normalizesToC},
                                   {"hash", tokenizer.hash()}};
  result["begin_token"] = tokenizer.beginToken() ? nlohmann::json(*tokenizer.beginToken()) : nullptr;
  result["end_token"] = tokenizer.endToken() ? nlohmann::json(*tokenizer.endToken()) : nullptr;
  result["added_tokens"] = std::move(special);
  return result;
}

nlohmann::ordered_json describeDataset(const data::Dataset& dataset) {
  const std::span<const std::int64_t> offsets = dataset.documentOffsets();
  std::int64_t shortest = dataset.tokenCount(), longest = 0;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    shortest = std::min(shortest, offsets[i + 1] - offsets[i]);
    longest = std::max(longest, offsets[i + 1] - offsets[i]);
  }
  const data::DatasetDescription& description = dataset.description();
  const auto tokens = static_cast<double>(dataset.tokenCount());
  nlohmann::ordered_json result = {{"format", "tandem-dataset"},
                                   {"version", data::datasetVersion},
                                   {"documents", dataset.documentCount()},
                                   {"tokens", dataset.tokenCount()},
                                   {"text_bytes", description.textBytes},
                                   {"bytes_per_token", static_cast<double>(description.textBytes) / tokens},
                                   {"shortest_document", shortest},
                                   {"longest_document", longest},
                                   {"loss_mask", dataset.hasLossMask()},
                                   {"preference_pairs", description.pairs},
                                   {"tokenizer_hash", description.tokenizerHash}};
  const nlohmann::ordered_json sources = base::parseOrderedJsonOrDiscard(description.sources);
  result["sources"] = sources.is_discarded() ? nlohmann::ordered_json(description.sources) : sources;
  return result;
}

// "name: value" lines; a list of objects takes a line an entry.
std::string asText(const nlohmann::ordered_json& document, const std::string& indent = "") {
  std::string text;
  for (const auto& [name, value] : document.items()) {
    if (value.is_object()) {
      text += indent + name + ":\n" + asText(value, indent + "  ");
    } else if (value.is_array()) {
      text += indent + name + ": " + std::to_string(value.size()) + "\n";
      for (const auto& entry : value) text += indent + "  " + base::lenientJsonText(entry) + "\n";
    } else {
      text += indent + name + ": " + (value.is_string() ? value.get<std::string>() : base::jsonText(value)) + "\n";
    }
  }
  return text;
}

int inspect(comm::Communicator& world, const CommonOptions& common, const Settings& settings) {
  comm::agreeOn(world, [&] {
    if (!std::filesystem::exists(settings.path)) {
      throw base::Error(base::ErrorKind::usage, "the input '" + settings.path + "' does not exist");
    }
  });
  const tokenizer::Tokenizer tokenizer = loadTokenizer(world, settings.path, settings.pattern);
  comm::agreeOn(world, [&] {
    if (world.rank() != 0) return;
    nlohmann::ordered_json document;
    if (data::isDataset(settings.path)) document = describeDataset(data::Dataset(settings.path));
    document["tokenizer"] = describeTokenizer(tokenizer);
    std::string text = common.json ? base::lenientJsonText(document) : asText(document);
    if (text.ends_with('\n')) text.pop_back();
    printJson(text);
  });
  return 0;
}

}  // namespace

Command inspectCommand() {
  const auto settings = std::make_shared<Settings>();
  return {.name = "inspect",
          .purpose = "Says what a dataset, a tokenizer or the tokenizer of a checkpoint holds.",
          .declare =
              [settings](CLI::App& options) {
                options
                    .add_option("--input", settings->path,
                                "A dataset, tokenizer.json, .tiktoken file, run folder or checkpoint")
                    ->required()
                    ->type_name("PATH");
                options.add_option("--pattern", settings->pattern, "Pattern of a .tiktoken file")->type_name("NAME");
              },
          .run = [settings](comm::Communicator& world,
                            const CommonOptions& common) { return inspect(world, common, *settings); }};
}

}  // namespace tandem::app
