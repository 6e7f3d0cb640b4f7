#include "apps/tokenize/decode.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/tokenize/load_tokenizer.h"
#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/data/dataset.h"

namespace tandem::app {
namespace {

using base::Error;
using base::ErrorKind;
using tokenizer::TokenId;
using tokenizer::Tokenizer;

struct Settings {
  std::string tokenizer;
  std::string pattern;
  std::vector<std::int64_t> ids;
  std::string input;
  std::string documents;
  bool keepSpecial = false;
  bool asJsonLines = false;
};

void declare(CLI::App& options, Settings& settings) {
  options.add_option("--input", settings.input, "A dataset, whose documents are decoded with its own tokenizer")
      ->type_name("FILE");
  options
      .add_option("--documents", settings.documents,
                  "Which documents of the dataset: one number, or BEGIN:END without END; by default all")
      ->type_name("RANGE");
  options.add_option("--tokenizer", settings.tokenizer, "The tokenizer for --ids, as for encode")->type_name("PATH");
  options.add_option("--pattern", settings.pattern, "Pattern of a .tiktoken file")->type_name("NAME");
  options.add_option("--ids", settings.ids, "Token ids to decode")->type_name("INTEGER");
  options.add_flag("--special", settings.keepSpecial, "Show the tokens that begin and end documents");
  options.add_flag("--jsonl", settings.asJsonLines,
                   "One line {\"text\": ...} a document; bytes that are no UTF-8 become U+FFFD");
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    throw Error(ErrorKind::file, "cannot write to standard output: " + base::systemErrorText(errno));
  }
}

// Prints the documents as they come, in the form that was asked for.
class Output {
 public:
  Output(const Settings& settings, bool asJson)
      : form_(asJson                 ? Form::oneDocument
              : settings.asJsonLines ? Form::lines
                                     : Form::text) {}

  // `number` is the document's in its dataset; ids have none.
  void add(const std::string& text, std::optional<std::int64_t> number = std::nullopt) {
    if (form_ == Form::text) {
      print(text);
      return;
    }
    nlohmann::ordered_json object;
    if (number && form_ == Form::oneDocument) object["document"] = *number;
    object["text"] = text;
    const std::string line = base::lenientJsonText(object);
    print(form_ == Form::lines ? line + "\n" : separator_ + line);
    separator_ = ",";
  }

  // Ends the line of a shell; other forms end their lines themselves.
  void endLine() {
    if (form_ == Form::text) print("\n");
  }

  void finish() {
    if (form_ == Form::oneDocument) print("]}\n");
    if (std::fflush(stdout) != 0) {
      throw Error(ErrorKind::file, "cannot write to standard output: " + base::systemErrorText(errno));
    }
  }

 private:
  enum class Form { text, lines, oneDocument };
  Form form_;
  std::string separator_ = "{\"documents\":[";
};

std::int64_t parseNumber(const Settings& settings, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Error(ErrorKind::usage, "--documents '" + settings.documents + "' is neither a number nor BEGIN:END");
  }
  return value;
}

std::pair<std::int64_t, std::int64_t> documentRange(const Settings& settings, const data::Dataset& dataset) {
  if (settings.documents.empty()) return {0, dataset.documentCount()};
  const std::string_view text = settings.documents;
  const std::size_t colon = text.find(':');
  const std::int64_t begin = parseNumber(settings, text.substr(0, colon));
  const bool isOne = colon == std::string_view::npos;
  const std::int64_t end =
      isOne ? std::min(begin, dataset.documentCount()) + 1 : parseNumber(settings, text.substr(colon + 1));
  if (begin >= end || end > dataset.documentCount()) {
    throw Error(ErrorKind::usage, "--documents " + settings.documents + ": the dataset has the documents 0 to " +
                                      std::to_string(dataset.documentCount() - 1));
  }
  return {begin, end};
}

void decodeDataset(const Settings& settings, const Tokenizer& tokenizer, Output& output) {
  const data::Dataset dataset(settings.input);
  const auto [begin, end] = documentRange(settings, dataset);
  const std::span<const std::int64_t> offsets = dataset.documentOffsets();
  std::vector<std::int32_t> stored;
  for (std::int64_t document = begin; document < end; ++document) {
    const std::int64_t first = offsets[static_cast<std::size_t>(document)];
    stored.resize(static_cast<std::size_t>(offsets[static_cast<std::size_t>(document) + 1] - first));
    dataset.readTokens(first, stored);
    std::vector<TokenId> ids(stored.begin(), stored.end());
    std::span<const TokenId> shown(ids);
    if (!settings.keepSpecial) {
      if (!shown.empty() && shown.front() == tokenizer.beginToken()) shown = shown.subspan(1);
      if (!shown.empty() && shown.back() == tokenizer.endToken()) shown = shown.first(shown.size() - 1);
    }
    output.add(tokenizer.decode(shown), document);
  }
}

void decodeIds(const Settings& settings, const Tokenizer& tokenizer, Output& output) {
  std::vector<TokenId> ids;
  for (const std::int64_t id : settings.ids) {
    if (id < 0 || id >= tokenizer.vocabularySize()) {
      throw Error(ErrorKind::usage, "the id " + std::to_string(id) + " is outside the vocabulary of " +
                                        std::to_string(tokenizer.vocabularySize()) + " tokens");
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  output.add(tokenizer.decode(ids));
  output.endLine();
}

void check(const Settings& settings, bool asJson) {
  if (asJson && settings.asJsonLines) {
    throw Error(ErrorKind::usage, "give either --json, one document in all, or --jsonl, a line for each");
  }
  if (settings.input.empty() == settings.ids.empty()) {
    throw Error(ErrorKind::usage, "give either --input DATASET or --tokenizer T --ids ...");
  }
  if (settings.input.empty() == settings.tokenizer.empty()) {
    throw Error(ErrorKind::usage, settings.input.empty() ? "--ids needs a --tokenizer"
                                                         : "a dataset is decoded with the tokenizer in it; "
                                                           "--tokenizer is for --ids");
  }
  if (!settings.input.empty() && !std::filesystem::exists(settings.input)) {
    throw Error(ErrorKind::usage, "the input '" + settings.input + "' does not exist");
  }
}

int decode(comm::Communicator& world, const CommonOptions& common, const Settings& settings) {
  comm::agreeOn(world, [&] { check(settings, common.json); });
  const std::string& source = settings.input.empty() ? settings.tokenizer : settings.input;
  const Tokenizer tokenizer = loadTokenizer(world, source, settings.pattern);
  comm::agreeOn(world, [&] {
    if (world.rank() != 0) return;
    Output output(settings, common.json);
    settings.input.empty() ? decodeIds(settings, tokenizer, output) : decodeDataset(settings, tokenizer, output);
    output.finish();
  });
  return 0;
}

}  // namespace

Command decodeCommand() {
  const auto settings = std::make_shared<Settings>();
  return {.name = "decode",
          .purpose = "Turns token ids, or the documents of a dataset, back into text on standard output.",
          .declare = [settings](CLI::App& options) { declare(options, *settings); },
          .run = [settings](comm::Communicator& world,
                            const CommonOptions& common) { return decode(world, common, *settings); }};
}

}  // namespace tandem::app
