#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "apps/evaluate/commands.h"
#include "apps/evaluate/conversation.h"
#include "apps/evaluate/loaded_model.h"
#include "apps/evaluate/sampling_options.h"
#include "apps/shared/chat.h"
#include "common/base/json.h"
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
  model::CacheFormat caches = model::CacheFormat::asStored;
  runtime::SamplingOptions sampling;
};

void check(comm::Communicator& world, const ChatOptions& options) {
  runtime::check(options.sampling);
  const std::string& shard = options.model.shard;
  const int copies = shard.empty() ? world.size() : sharding::parseGrid(shard, world.size()).data;
  if (copies > 1) {
    throw base::Error(base::ErrorKind::usage, "a conversation is held with one copy of the model, and there are " +
                                                  std::to_string(copies) +
                                                  "; --shard tp=N or pp=N gives each of N ranks a part of one; many "
                                                  "prompts are for evaluate generate --chat --prompt-file");
  }
  if (options.maxTokens < 1) throw base::Error(base::ErrorKind::usage, "--max-tokens must be at least 1");
  if (options.capacity < 0) throw base::Error(base::ErrorKind::usage, "--context cannot be negative");
}

// Reads questions from stdin, a line each, and answers them until it ends. Of several ranks, which all hold the
// conversation, the first one reads and writes.
class Terminal {
 public:
  Terminal(Conversation& conversation, const ChatOptions& options, bool json, comm::Communicator& world)
      : conversation_(conversation),
        options_(options),
        json_(json),
        world_(world),
        isTyped_(comm::broadcastText(world, isatty(STDIN_FILENO) != 0 ? "yes" : "no", 0) == "yes") {}

  void run() {
    if (isTyped_ && writes()) std::cout << "/new begins anew, /quit or Ctrl-D ends, Ctrl-C stops an answer\n";
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
    if (json_) app::printJson(base::lenientJsonText(turns_));
  }

 private:
  bool writes() const { return !json_ && world_.rank() == 0; }

  // The next line, which the first rank reads; whether there is one. The others look now and then, rather than wait in
  // an exchange: whoever types may think for longer than an exchange may take.
  bool ask(std::string& line) const {
    std::int32_t isThere = 0;
    const comm::Buffer message{&isThere, base::DType::i32, 1};
    if (world_.rank() == 0) {
      if (isTyped_ && writes()) std::cout << "> " << std::flush;
      isThere = std::getline(std::cin, line) ? 1 : 0;
      for (int rank = 1; rank < world_.size(); ++rank) world_.send(message, rank, 0);
    } else {
      const auto told = world_.startReceive(message, 0, 0);
      while (!told->test()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    line = comm::broadcastText(world_, line, 0);
    return isThere != 0;
  }

  void answer(const std::string& question) {
    const base::InterruptWatch watch;
    const auto show = [&](const std::string& text) {
      if (writes()) std::cout << text << std::flush;
    };
    try {
      const Conversation::Answer answer =
          conversation_.ask(question, options_.sampling, options_.maxTokens, show, [&] { return watch.interrupted(); });
      if (writes()) std::cout << std::endl;
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
  comm::Communicator& world_;
  bool isTyped_;  // by somebody at a terminal
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
                                 device.arena, loaded.split.get(), options.caches);
    Conversation conversation(generator, chat, options.system, capacity);
    Terminal(conversation, options, common.json, world).run();
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
                declareCaches(app, options->caches);
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
