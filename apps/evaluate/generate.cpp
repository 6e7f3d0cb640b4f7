#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "apps/evaluate/commands.h"
#include "apps/evaluate/loaded_model.h"
#include "apps/evaluate/sampling_options.h"
#include "apps/evaluate/text_stream.h"
#include "apps/shared/chat.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/runtime/generator.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::evaluate {
namespace {

using Json = nlohmann::ordered_json;

struct GenerateOptions {
  ModelOptions model;
  std::vector<std::string> prompts;
  std::string promptFile;
  std::vector<std::string> stops;
  std::int64_t maxTokens = 128;
  std::int64_t batch = 8;
  std::int64_t capacity = 0;  // 0: the model's positions
  bool ignoreEnd = false;
  bool chat = false;
  std::string chatTemplate;
  std::string system;
  model::CacheFormat caches = model::CacheFormat::asStored;
  runtime::SamplingOptions sampling;
};

struct Answer {
  std::string prompt;
  std::string text;
  std::int64_t promptTokens = 0;
  runtime::Generation generation;
};

std::vector<std::string> readPrompts(const GenerateOptions& options) {
  std::vector<std::string> prompts = options.prompts;
  if (!options.promptFile.empty()) {
    std::istringstream lines(base::readFile(options.promptFile));
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) prompts.push_back(line);
    }
  }
  if (prompts.empty())
    throw base::Error(base::ErrorKind::usage, "there is no prompt: give --prompt or a --prompt-file with lines");
  return prompts;
}

// What a prompt is written down with: as text, or as a question by a chat template.
struct Language {
  tokenizer::Tokenizer tokens;
  std::optional<tokenizer::ChatEncoder> chat;
};

Language languageOf(const LoadedModel& loaded, const GenerateOptions& options) {
  if (loaded.tokenizer.empty()) {
    throw base::Error(base::ErrorKind::badData, "checkpoint '" + loaded.folder + "' holds no tokenizer");
  }
  Language language{.tokens = tokenizer::fromJson(loaded.tokenizer, "the checkpoint's tokenizer"), .chat = {}};
  if (options.chat) {
    language.chat.emplace(app::chooseChatTemplate(options.chatTemplate, loaded.chatTemplate, loaded.folder),
                          language.tokens);
  }
  return language;
}

// As in training: a document's begin token, then the text; or a conversation up to where the answer begins.
runtime::GenerationRequest makeRequest(Language& language, const std::string& prompt, std::int64_t number,
                                       const GenerateOptions& options) {
  const tokenizer::Tokenizer& tokens = language.tokens;
  runtime::GenerationRequest request{.maxTokens = options.maxTokens, .sequence = static_cast<std::uint64_t>(number)};
  if (language.chat) {
    std::vector<tokenizer::ChatMessage> messages;
    if (!options.system.empty()) messages.push_back({tokenizer::ChatRole::system, options.system});
    messages.push_back({tokenizer::ChatRole::user, prompt});
    for (const tokenizer::TokenId id : language.chat->encode(messages, true).tokens) {
      request.prompt.push_back(static_cast<std::int32_t>(id));
    }
    if (!options.ignoreEnd) request.stopTokens.push_back(static_cast<std::int32_t>(language.chat->answerEnd()));
    return request;
  }
  if (tokens.beginToken()) request.prompt.push_back(static_cast<std::int32_t>(*tokens.beginToken()));
  for (const tokenizer::TokenId id : tokens.encode(prompt)) request.prompt.push_back(static_cast<std::int32_t>(id));
  if (tokens.endToken() && !options.ignoreEnd)
    request.stopTokens.push_back(static_cast<std::int32_t>(*tokens.endToken()));
  return request;
}

std::vector<Answer> answer(runtime::Generator& generator, Language& language, const std::vector<std::string>& prompts,
                           std::int64_t firstNumber, std::int64_t stride, const GenerateOptions& options,
                           bool streams) {
  const tokenizer::Tokenizer& tokens = language.tokens;
  std::vector<runtime::GenerationRequest> requests;
  std::vector<TextStream> texts;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back(makeRequest(language, prompts[i], firstNumber + static_cast<std::int64_t>(i) * stride, options));
    texts.emplace_back(options.stops,
                       options.chat ? TextStream::Beginning::withoutBlanks : TextStream::Beginning::asItIs);
  }
  auto onToken = [&](std::int64_t index, std::int32_t token) {
    TextStream& text = texts[static_cast<std::size_t>(index)];
    // A vocabulary may be smaller than the model's table; the rows beyond it stand for nothing.
    if (token < tokens.vocabularySize()) text.append(tokens.tokenBytes(static_cast<tokenizer::TokenId>(token)));
    if (streams) std::cout << text.takeReady() << std::flush;
    return !text.stopped();
  };
  const std::vector<runtime::Generation> generations = generator.run(requests, options.sampling, onToken);
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (streams) std::cout << texts[i].takeRest() << std::endl;
    answers.push_back({.prompt = prompts[i],
                       .text = texts[i].text(),
                       .promptTokens = static_cast<std::int64_t>(requests[i].prompt.size()),
                       .generation = generations[i]});
    if (texts[i].stopped()) answers.back().generation.stopReason = "stop_text";
  }
  return answers;
}

Json toJson(const Answer& answer) {
  return {{"prompt", answer.prompt},
          {"text", answer.text},
          {"token_ids", answer.generation.tokens},
          {"prompt_tokens", answer.promptTokens},
          {"generated_tokens", answer.generation.tokens.size()},
          {"stop_reason", answer.generation.stopReason},
          {"prefill_seconds", answer.generation.prefillSeconds},
          {"decode_seconds", answer.generation.decodeSeconds}};
}

void printSpeed(const std::vector<Json>& answers, double wallSeconds) {
  double prefill = 0, promptTokens = 0, generated = 0, longest = 0;
  for (const Json& answer : answers) {
    prefill += answer["prefill_seconds"].get<double>();
    promptTokens += answer["prompt_tokens"].get<double>();
    generated += answer["generated_tokens"].get<double>();
    longest = std::max(longest, answer["decode_seconds"].get<double>());
  }
  char line[192];
  std::snprintf(line, sizeof line,
                "prefill %.0f tokens at %.1f tokens/s; wrote %.0f tokens, %.1f tokens/s over all (%.2f s)",
                promptTokens, prefill > 0 ? promptTokens / prefill : 0.0, generated,
                wallSeconds > 0 ? generated / wallSeconds : 0.0, wallSeconds);
  TANDEM_LOG(info) << line;
}

// The answers of all copies of the model, in the order of the prompts; of each copy its first rank speaks.
std::vector<Json> gather(comm::Communicator& world, const LoadedModel& loaded, const std::vector<Answer>& own,
                         std::size_t count) {
  Json mine = {{"copy", loaded.copy()}, {"answers", Json::array()}};
  if (!loaded.split || loaded.split->isFirst()) {
    for (const Answer& answer : own) mine["answers"].push_back(toJson(answer));
  }
  const auto copies = static_cast<std::size_t>(loaded.copies());
  std::vector<Json> all(count);
  for (const std::string& text : comm::allGatherTexts(world, base::lenientJsonText(mine))) {
    const Json told = base::parseOrderedJson(text);
    const auto copy = told["copy"].get<std::size_t>();
    for (std::size_t i = 0; i < told["answers"].size(); ++i) all[copy + i * copies] = told["answers"][i];
  }
  return all;
}

int run(comm::Communicator& world, const app::CommonOptions& common, const GenerateOptions& options) {
  std::vector<std::string> prompts;
  comm::agreeOn(world, [&] {
    check(options.sampling);
    if (options.batch < 1) throw base::Error(base::ErrorKind::usage, "--batch must be at least 1");
    if (options.maxTokens < 1) throw base::Error(base::ErrorKind::usage, "--max-tokens must be at least 1");
    if (!options.chat && (!options.chatTemplate.empty() || !options.system.empty())) {
      throw base::Error(base::ErrorKind::usage, "--chat-template and --system are for --chat");
    }
    prompts = readPrompts(options);
  });
  const LoadedModel loaded = loadModel(world, common, options.model);
  // Prompts are dealt out over the copies of the model in turn.
  std::vector<std::string> own;
  const auto copy = static_cast<std::size_t>(loaded.copy()), copies = static_cast<std::size_t>(loaded.copies());
  for (std::size_t i = copy; i < prompts.size(); i += copies) own.push_back(prompts[i]);
  const bool streams = !common.json && prompts.size() == 1 && world.rank() == 0;
  const auto start = std::chrono::steady_clock::now();
  std::vector<Answer> answers;
  comm::agreeOn(world, [&] {
    Language language = languageOf(loaded, options);
    if (own.empty()) return;
    const std::int64_t batch = std::min<std::int64_t>(options.batch, static_cast<std::int64_t>(own.size()));
    const std::int64_t capacity = options.capacity > 0
                                      ? std::min(options.capacity, loaded.configuration.maximumPositions)
                                      : loaded.configuration.maximumPositions;
    const train::Device device = loaded.device();
    runtime::Generator generator(loaded.configuration, *loaded.parameters, batch, capacity, device.backend,
                                 device.stream, device.arena, loaded.split.get(), options.caches);
    if (streams && !options.chat) std::cout << own.front() << std::flush;
    for (std::size_t first = 0; first < own.size(); first += static_cast<std::size_t>(batch)) {
      const std::size_t end = std::min(own.size(), first + static_cast<std::size_t>(batch));
      const std::vector<std::string> part(own.begin() + static_cast<std::ptrdiff_t>(first),
                                          own.begin() + static_cast<std::ptrdiff_t>(end));
      const auto number = static_cast<std::int64_t>(copy + first * copies);
      for (Answer& done :
           answer(generator, language, part, number, static_cast<std::int64_t>(copies), options, streams)) {
        answers.push_back(std::move(done));
      }
    }
  });
  const std::vector<Json> all = gather(world, loaded, answers, prompts.size());
  if (common.json) {
    app::printJson(base::lenientJsonText(Json(all)));
  } else if (world.rank() == 0 && !streams) {
    for (const Json& one : all)
      std::cout << one["prompt"].get<std::string>() << (options.chat ? "\n" : "") << one["text"].get<std::string>()
                << "\n\n";
  }
  printSpeed(all, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return 0;
}

}  // namespace

app::Command generateCommand() {
  const auto options = std::make_shared<GenerateOptions>();
  return {
      .name = "generate",
      .purpose = "Goes on from prompts; several are shared out over ranks, and the answers do not depend on how.",
      .declare =
          [options](CLI::App& app) {
            declareModelOptions(app, options->model);
            declareCaches(app, options->caches);
            app.add_option("--prompt", options->prompts, "Text to go on from; may be given several at once")
                ->type_name("TEXT");
            app.add_option("--prompt-file", options->promptFile, "A prompt a line")
                ->check(CLI::ExistingFile)
                ->type_name("FILE");
            app.add_flag("--chat", options->chat, "Prompts are questions, and the answers the model's turns");
            app.add_option("--chat-template", options->chatTemplate,
                           "tandem, chatml, llama3, mistral or zephyr; without it the checkpoint's own")
                ->type_name("NAME");
            app.add_option("--system", options->system, "With --chat: what the system says first")->type_name("TEXT");
            app.add_option("--stop", options->stops, "Texts that end an answer and are not part of it")
                ->type_name("TEXT");
            app.add_option("--max-tokens", options->maxTokens, "Of an answer")->type_name("TOKENS");
            app.add_option("--batch", options->batch, "Answers written at once")->type_name("SEQUENCES");
            app.add_option("--context", options->capacity,
                           "Tokens of prompt and answer together; 0: the model's positions")
                ->type_name("TOKENS");
            app.add_flag("--ignore-end", options->ignoreEnd, "Write on past the end-of-text token");
            declareSamplingOptions(app, options->sampling);
          },
      .run = [options](comm::Communicator& world,
                       const app::CommonOptions& common) { return run(world, common, *options); }};
}

}  // namespace tandem::evaluate
