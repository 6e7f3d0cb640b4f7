#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/evaluate/commands.h"
#include "apps/evaluate/conversation.h"
#include "apps/evaluate/loaded_model.h"
#include "apps/evaluate/sampling_options.h"
#include "apps/shared/chat.h"
#include "common/base/signals.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::evaluate {
namespace {

using Json = nlohmann::ordered_json;

struct ChatOptions {
  ModelOptions model;
  std::string chatTemplate;
  std::string system;
  std::int64_t maxTokens = 256;
  std::int64_t capacity = 0;  // 0: the model's positions
  runtime::SamplingOptions sampling;
};

void check(comm::Communicator& world, const ChatOptions& options) {
  runtime::check(options.sampling);
  if (world.size() > 1) {
    throw base::Error(base::ErrorKind::usage, "a conversation is held by one rank, and there are " +
                                                  std::to_string(world.size()) +
                                                  "; many prompts are for evaluate generate --chat --prompt-file");
  }
  if (options.maxTokens < 1) throw base::Error(base::ErrorKind::usage, "--max-tokens must be at least 1");
  if (options.capacity < 0) throw base::Error(base::ErrorKind::usage, "--context cannot be negative");
}

// Reads questions from stdin, a line each, and answers them until it ends.
class Terminal {
 public:
  Terminal(Conversation& conversation, const ChatOptions& options, bool json)
      : conversation_(conversation), options_(options), json_(json), isTyped_(isatty(STDIN_FILENO) != 0) {}

  void run() {
    if (isTyped_ && !json_) std::cout << "/new begins anew, /quit or Ctrl-D ends, Ctrl-C stops an answer\n";
    std::string line;
    while (ask(line)) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (line == "/quit") break;
      if (line == "/new") {
        conversation_.begin();
      } else {
        answer(line);
      }
    }
    if (json_) app::printJson(turns_.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

 private:
  bool ask(std::string& line) const {
    if (isTyped_ && !json_) std::cout << "> " << std::flush;
    return static_cast<bool>(std::getline(std::cin, line));
  }

  void answer(const std::string& question) {
    const base::InterruptWatch watch;
    const auto show = [&](const std::string& text) {
      if (!json_) std::cout << text << std::flush;
    };
    try {
      const Conversation::Answer answer =
          conversation_.ask(question, options_.sampling, options_.maxTokens, show, [&] { return watch.interrupted(); });
      if (!json_) std::cout << std::endl;
      if (answer.droppedTurns > 0) {
        TANDEM_LOG(info) << "the oldest " << answer.droppedTurns << " turns had no room any more and are forgotten";
      }
      turns_.push_back({{"user", question}, {"assistant", answer.text}, {"stop_reason", answer.stopReason}});
    } catch (const base::Error& error) {
      if (error.kind() != base::ErrorKind::usage || !isTyped_) throw;
      TANDEM_LOG(warning) << error.message();
    }
  }

  Conversation& conversation_;
  const ChatOptions& options_;
  bool json_;
  bool isTyped_;
  Json turns_ = Json::array();
};

int run(comm::Communicator& world, const app::CommonOptions& common, const ChatOptions& options) {
  comm::agreeOn(world, [&] { check(world, options); });
  const LoadedModel loaded = loadModel(world, common, options.model);
  comm::agreeOn(world, [&] {
    if (loaded.tokenizer.empty()) {
      throw base::Error(base::ErrorKind::badData, "checkpoint '" + loaded.folder + "' holds no tokenizer");
    }
    tokenizer::ChatEncoder chat(app::chooseChatTemplate(options.chatTemplate, loaded.chatTemplate, loaded.folder),
                                tokenizer::fromJson(loaded.tokenizer, "the checkpoint's tokenizer"));
    const std::int64_t positions = loaded.configuration.maximumPositions;
    const std::int64_t capacity = options.capacity > 0 ? std::min(options.capacity, positions) : positions;
    const train::Device device = loaded.device();
    runtime::Generator generator(loaded.configuration, *loaded.parameters, 1, capacity, device.backend, device.stream,
                                 device.arena);
    Conversation conversation(generator, chat, options.system, capacity);
    Terminal(conversation, options, common.json).run();
  });
  return 0;
}

}  // namespace

app::Command chatCommand() {
  const auto options = std::make_shared<ChatOptions>();
  return {.name = "chat",
          .purpose = "A conversation: each line of the input is a question, and the model answers it.",
          .declare =
              [options](CLI::App& app) {
                declareModelOptions(app, options->model);
                app.add_option("--chat-template", options->chatTemplate,
                               "tandem, chatml, llama3, mistral or zephyr; without it the checkpoint's own")
                    ->type_name("NAME");
                app.add_option("--system", options->system, "What the system says first")->type_name("TEXT");
                app.add_option("--max-tokens", options->maxTokens, "Of an answer")->type_name("TOKENS");
                app.add_option("--context", options->capacity,
                               "Tokens of the conversation that the model sees; 0: its positions")
                    ->type_name("TOKENS");
                declareSamplingOptions(app, options->sampling);
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return run(world, common, *options); }};
}

}  // namespace tandem::evaluate
