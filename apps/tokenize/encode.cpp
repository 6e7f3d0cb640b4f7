#include "apps/tokenize/encode.h"

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/shared/chat.h"
#include "apps/shared/progress.h"
#include "apps/tokenize/load_tokenizer.h"
#include "apps/tokenize/text_input.h"
#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/units.h"
#include "common/comm/session.h"
#include "common/data/corpus.h"

namespace tandem::app {
namespace {

using base::Error;
using base::ErrorKind;

struct Settings {
  TextInput input;
  std::string tokenizer;
  std::string pattern;
  std::string output;
  std::string validationOutput;
  bool noBegin = false;
  bool noEnd = false;
  bool chat = false;
  std::string chatTemplate;
  data::EncodeSettings encode;
};

void declare(CLI::App& options, Settings& settings) {
  declareTextInput(options, settings.input);
  options
      .add_option("--tokenizer", settings.tokenizer,
                  "tokenizer.json, a .tiktoken file (with --pattern), a run folder, or any HDF5 file of ours")
      ->required()
      ->type_name("PATH");
  options
      .add_option("--pattern", settings.pattern, "Pattern of a .tiktoken file: gpt2, cl100k, o200k, llama3 or qwen2")
      ->type_name("NAME");
  options.add_option("--output", settings.output, "The dataset to write")->required()->type_name("FILE");
  options
      .add_option("--val-fraction", settings.encode.validationFraction,
                  "Share of the documents that goes to --val-output instead, between 0 and 1")
      ->type_name("NUMBER");
  options.add_option("--val-output", settings.validationOutput, "The dataset for validation")->type_name("FILE");
  options.add_option("--seed", settings.encode.seed, "Decides which documents are for validation")
      ->type_name("INTEGER");
  options.add_flag("--no-begin", settings.noBegin, "Do not begin documents with the tokenizer's begin token");
  options.add_flag("--no-end", settings.noEnd, "Do not end documents with the tokenizer's end token");
  options.add_flag("--chat", settings.chat,
                   "Records are conversations, written down by a chat template, with a loss mask on the answers");
  options.add_flag("--pairs", settings.encode.pairs,
                   "Records are pairs of answers, a chosen and a rejected one, for finetune --objective dpo");
  options
      .add_option("--chat-template", settings.chatTemplate,
                  "With --chat or --pairs: tandem, chatml, llama3, mistral or zephyr; without it that of --tokenizer")
      ->type_name("NAME");
  options.add_flag("--parse-special", settings.encode.parseSpecial,
                   "Text that reads like a special token is that token, not text");
}

bool usesTemplate(const Settings& settings) { return settings.chat || settings.encode.pairs; }

void check(Settings& settings) {
  const double fraction = settings.encode.validationFraction;
  const bool hasOutput = !settings.validationOutput.empty();
  if (!(fraction >= 0 && fraction < 1)) {
    throw Error(ErrorKind::usage, "--val-fraction " + std::to_string(fraction) + " is not between 0 and 1");
  }
  if (hasOutput != (fraction > 0)) {
    throw Error(ErrorKind::usage, "--val-fraction and --val-output belong together; give both or neither");
  }
  if (hasOutput && settings.validationOutput == settings.output) {
    throw Error(ErrorKind::usage, "--output and --val-output are the same file '" + settings.output + "'");
  }
  if (settings.chat && settings.encode.pairs) {
    throw Error(ErrorKind::usage, "--chat and --pairs say different things of the records; give one");
  }
  if (!usesTemplate(settings) && !settings.chatTemplate.empty()) {
    throw Error(ErrorKind::usage, "--chat-template is for --chat and --pairs");
  }
  settings.encode.output = settings.output;
  settings.encode.addBegin = !settings.noBegin;
  settings.encode.addEnd = !settings.noEnd;
  if (hasOutput) settings.encode.validationOutput = settings.validationOutput;
}

void report(const Settings& settings, const CommonOptions& common, const data::EncodeSummary& summary, double seconds) {
  const auto bytes = static_cast<double>(summary.textBytes);
  const double bytesPerToken = bytes / static_cast<double>(summary.tokens);
  logReport(summary.report);
  const auto tell = [&](const std::string& output, std::int64_t documents, std::int64_t tokens) {
    const bool pairs = settings.encode.pairs;
    TANDEM_LOG(info) << "wrote " << output << ": " << (pairs ? documents / 2 : documents)
                     << (pairs ? " pairs, " : " documents, ") << tokens << " tokens";
  };
  tell(settings.output, summary.documents - summary.validationDocuments, summary.tokens - summary.validationTokens);
  if (settings.encode.validationOutput) {
    tell(*settings.encode.validationOutput, summary.validationDocuments, summary.validationTokens);
  }
  TANDEM_LOG(info) << base::formatBytes(summary.textBytes) << " of text, " << bytesPerToken << " bytes a token, "
                   << bytes / seconds / 1e6 << " MB/s in " << base::formatDuration(seconds);
  if (!common.json) return;
  nlohmann::json document = {{"output", settings.output},
                             {"documents", summary.documents},
                             {"tokens", summary.tokens},
                             {"text_bytes", summary.textBytes},
                             {"bytes_per_token", bytesPerToken},
                             {"bad_records", summary.report.badRecords},
                             {"empty_documents", summary.report.emptyDocuments},
                             {"invalid_utf8", summary.report.invalidUtf8},
                             {"seconds", seconds},
                             {"megabytes_per_second", bytes / seconds / 1e6}};
  if (settings.encode.validationOutput) {
    document["validation_output"] = settings.validationOutput;
    document["validation_documents"] = summary.validationDocuments;
    document["validation_tokens"] = summary.validationTokens;
  }
  printJson(base::lenientJsonText(document));
}

int encode(comm::Communicator& world, const CommonOptions& common, Settings& settings) {
  // A rank with a larger part, one huge compressed file say, keeps the others waiting for as long as it takes.
  comm::setWatchdogLimit(std::chrono::seconds(0));
  comm::agreeOn(world, [&] { check(settings); });
  settings.encode.threads = common.threads;
  const tokenizer::Tokenizer tokenizer = loadTokenizer(world, settings.tokenizer, settings.pattern);
  if (usesTemplate(settings)) {
    const std::string jinja = loadChatTemplate(world, settings.tokenizer);
    comm::agreeOn(world, [&] {
      settings.encode.chat = chooseChatTemplate(settings.chatTemplate, jinja, settings.tokenizer);
      tokenizer::ChatEncoder(*settings.encode.chat, tokenizer);  // says what the tokenizer lacks
    });
  }
  const std::vector<data::TextFile> files = findInput(world, settings.input);
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<Progress> progress;
  const auto show = [&](std::int64_t done, std::int64_t total) {
    if (world.rank() != 0) return;
    if (!progress) progress = std::make_unique<Progress>("encoding", total, "B");
    progress->update(done);
  };
  const data::EncodeSummary summary =
      data::encodeCorpus(world, tokenizer, files, settings.input.options, settings.encode, show);
  progress.reset();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  report(settings, common, summary, seconds.count());
  return 0;
}

}  // namespace

Command encodeCommand() {
  const auto settings = std::make_shared<Settings>();
  return {.name = "encode",
          .purpose = "Encodes text to a token dataset in HDF5; the same at any number of ranks and threads.",
          .declare = [settings](CLI::App& options) { declare(options, *settings); },
          .run = [settings](comm::Communicator& world,
                            const CommonOptions& common) { return encode(world, common, *settings); }};
}

}  // namespace tandem::app
