#include "apps/tokenize/train.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/shared/progress.h"
#include "apps/tokenize/text_input.h"
#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/base/units.h"
#include "common/comm/session.h"
#include "common/tokenizer/train.h"

namespace tandem::app {
namespace {

using base::Error;
using base::ErrorKind;
using Clock = std::chrono::steady_clock;

struct TrainSettings {
  TextInput input;
  std::int64_t vocabularySize = 0;
  std::string pattern = "o200k";
  std::vector<std::string> special = {"<|endoftext|>"};
  bool normalizesToC = false;
  std::string output;
};

void declare(CLI::App& options, TrainSettings& settings) {
  declareTextInput(options, settings.input);
  options
      .add_option("--vocab-size", settings.vocabularySize,
                  "Tokens of the vocabulary: 256 bytes, those found in the text, and the special ones")
      ->required()
      ->type_name("TOKENS");
  options
      .add_option("--pattern", settings.pattern,
                  "How text is cut into words: gpt2, cl100k, o200k, llama3, qwen2 or gpt2-digits")
      ->type_name("NAME");
  options
      .add_option("--special", settings.special,
                  "Special tokens; <|endoftext|> among them begins and ends every document")
      ->type_name("TEXT");
  options.add_flag("--nfc", settings.normalizesToC, "Normalise text to NFC first, in training and in encoding");
  options.add_option("--output", settings.output, "The tokenizer.json to write")->required()->type_name("FILE");
}

void checkOutput(const std::filesystem::path& output) {
  const std::filesystem::path folder = output.has_parent_path() ? output.parent_path() : ".";
  if (!std::filesystem::is_directory(folder)) {
    throw Error(ErrorKind::usage, "the folder '" + folder.string() + "' of the output does not exist; make it first");
  }
  if (std::filesystem::is_directory(output)) {
    throw Error(ErrorKind::usage, "the output '" + output.string() + "' is a folder; give the name of a file");
  }
}

// Refuses what learning would refuse, before the text is counted.
tokenizer::TrainOptions trainOptions(const TrainSettings& settings) {
  const auto smallest = static_cast<std::int64_t>(256 + settings.special.size());
  if (settings.vocabularySize < smallest) {
    throw Error(ErrorKind::usage, "--vocab-size " + std::to_string(settings.vocabularySize) +
                                      " has no room for the 256 bytes and the special tokens; at least " +
                                      std::to_string(smallest) + " are needed");
  }
  return {.vocabularySize = settings.vocabularySize,
          .pattern = tokenizer::parsePattern(settings.pattern),
          .specialTokens = settings.special,
          .normalizesToC = settings.normalizesToC};
}

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int train(comm::Communicator& world, const CommonOptions& common, TrainSettings& settings) {
  // Rank 0 learns alone while the others wait, for as long as it takes.
  comm::setWatchdogLimit(std::chrono::seconds(0));
  const Clock::time_point start = Clock::now();
  tokenizer::TrainOptions options;
  comm::agreeOn(world, [&] {
    options = trainOptions(settings);
    if (world.rank() == 0) checkOutput(settings.output);
  });
  const std::vector<data::TextFile> files = findInput(world, settings.input);
  std::unique_ptr<Progress> progress;
  const auto show = [&](std::int64_t done, std::int64_t total) {
    if (world.rank() != 0) return;
    if (!progress) progress = std::make_unique<Progress>("counting words", total, "B");
    progress->update(done);
  };
  const data::CorpusCount count = data::countCorpus(world, files, settings.input.options, options.pattern,
                                                    options.normalizesToC, common.threads, show);
  progress.reset();
  logReport(count.report);
  const double countSeconds = secondsSince(start);
  comm::agreeOn(world, [&] {
    if (world.rank() != 0) return;
    TANDEM_LOG(info) << base::formatBytes(count.textBytes) << " in " << count.documents << " documents, "
                     << count.words.words() << " distinct words; learning";
    const tokenizer::Tokenizer tokenizer = tokenizer::learnMerges(count.words, options);
    if (tokenizer.vocabularySize() < settings.vocabularySize) {
      TANDEM_LOG(warning) << "the text gives only " << tokenizer.vocabularySize() << " tokens, not the "
                          << settings.vocabularySize << " asked for: no further pair comes twice";
    }
    base::replaceFile(settings.output, tokenizer.json());
    TANDEM_LOG(info) << "wrote " << settings.output << ": " << tokenizer.vocabularySize() << " tokens, hash "
                     << tokenizer.hash() << ", in " << base::formatDuration(secondsSince(start));
    if (!common.json) return;
    printJson(base::lenientJsonText(nlohmann::json({{"output", settings.output},
                                                    {"vocabulary_size", tokenizer.vocabularySize()},
                                                    {"tokenizer_hash", tokenizer.hash()},
                                                    {"pattern", settings.pattern},
                                                    {"documents", count.documents},
                                                    {"text_bytes", count.textBytes},
                                                    {"distinct_words", count.words.words()},
                                                    {"bad_records", count.report.badRecords},
                                                    {"empty_documents", count.report.emptyDocuments},
                                                    {"invalid_utf8", count.report.invalidUtf8},
                                                    {"count_seconds", countSeconds},
                                                    {"seconds", secondsSince(start)}})));
  });
  return 0;
}

}  // namespace

Command trainCommand() {
  const auto settings = std::make_shared<TrainSettings>();
  return {.name = "train",
          .purpose = "Trains a byte-level BPE tokenizer; the same at any number of ranks and threads.",
          .declare = [settings](CLI::App& options) { declare(options, *settings); },
          .run = [settings](comm::Communicator& world,
                            const CommonOptions& common) { return train(world, common, *settings); }};
}

}  // namespace tandem::app
