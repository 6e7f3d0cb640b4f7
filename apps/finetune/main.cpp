// finetune: teaches a model conversations, all of its weights or small adapters beside them.

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/finetune/conversations.h"
#include "apps/shared/device.h"
#include "apps/shared/program.h"
#include "apps/shared/run_plan.h"
#include "apps/shared/training_options.h"
#include "common/base/json.h"
#include "common/base/signals.h"
#include "common/checkpoint/checkpoint.h"
#include "common/train/trainer.h"

namespace {

using namespace tandem;

struct Settings {
  train::TrainOptions options;
  app::TrainingTexts texts;
  std::string method = "full";
  std::string quantise;  // as --quantize says
  std::string objective = "answers";
  train::PreferenceOptions preference;
  train::AdapterOptions adapters;
  finetune::ConversationSettings conversations;
};

void declare(CLI::App& app, Settings& settings) {
  train::TrainOptions& options = settings.options;
  options.optimizer.weightDecay = 0;
  app.add_option("--checkpoint", options.base, "The model to begin with: a run folder or one step's folder")
      ->required()
      ->type_name("FOLDER");
  app.add_option("--method", settings.method,
                 "full: all weights learn; lora: small matrices beside frozen weights; qlora: the same, and the frozen "
                 "weights of the layers are held quantised")
      ->type_name("full|lora|qlora");
  app.add_option("--quantize", settings.quantise, "What the frozen weights of qlora are held as; without it int4")
      ->type_name("int8|int4");
  app.add_option("--objective", settings.objective,
                 "answers: the loss on what the assistant says; dpo: prefer the chosen answers of pairs")
      ->type_name("answers|dpo");
  app.add_option("--beta", settings.preference.beta, "Of dpo: how much it costs to leave the model of the beginning")
      ->type_name("NUMBER");
  app.add_option("--label-smoothing", settings.preference.labelSmoothing,
                 "Of dpo: the share of pairs that may be labelled the wrong way round")
      ->type_name("PART");
  app::declareRunOptions(app, options, settings.texts);
  app.get_option("--learning-rate")->default_str("1e-4, of dpo 1e-6");
  app.add_option("--epochs", options.epochs, "Passes over the data, instead of --steps; 3 where nothing is said")
      ->type_name("NUMBER");
  app.add_option("--chat-template", settings.conversations.chatTemplate,
                 "tandem, chatml, llama3, mistral or zephyr; without it the checkpoint's own")
      ->type_name("NAME");
  app.add_option("--val-fraction", settings.conversations.validationFraction,
                 "Share of the conversations that is evaluated on instead of learned")
      ->type_name("PART");
  app.add_flag("--skip-bad-records", settings.conversations.skipBadRecords,
               "Leave conversations that cannot be read out, and count them, instead of stopping");
  app.add_option("--lora-rank", settings.adapters.rank, "Rows of the small matrices")->type_name("NUMBER");
  app.add_option("--lora-alpha", settings.adapters.alpha, "Their change is multiplied by alpha / rank")
      ->type_name("NUMBER");
  app.add_option("--lora-dropout", settings.adapters.dropout, "Share of their inputs that is left out at random")
      ->type_name("PART");
  app.add_option("--lora-targets", settings.adapters.targets,
                 "attention, mlp, attention.qkv, attention.output, mlp.gate_up, mlp.up, mlp.down; without it all")
      ->type_name("NAME");
  app.add_flag("--lora-rank-stabilised", settings.adapters.rankStabilised, "Multiply by alpha / sqrt(rank) instead");
  app.add_flag("--lora-decomposed", settings.adapters.decomposed,
               "Learn the lengths of the weights' rows apart from their directions (DoRA)");
  app.add_flag("--warm-start", options.warmStart, "Begin with the optimizer states of the checkpoint; full only");
  app.add_option("--patience", options.patience, "Evaluations in a row without a better loss that end the run; 0: none")
      ->type_name("NUMBER");
}

[[noreturn]] void refuse(const std::string& message) { throw base::Error(base::ErrorKind::usage, message); }

// Rows as long as the model was trained on, or as it can be.
std::int64_t sequenceLengthOf(const checkpoint::Metadata& metadata, const model::Configuration& configuration) {
  constexpr std::int64_t most = 2048;
  const auto progress = base::parseJsonOrDiscard(metadata.progress);
  const auto place = nlohmann::json::json_pointer("/identity/sequence_length");
  const bool says = progress.is_object() && progress.contains(place) && progress.at(place).is_number_integer();
  return std::min(configuration.maximumPositions, says ? progress.at(place).get<std::int64_t>() : most);
}

// A pair says which of two answers is better, not what the answer is: rates that conversations are learned at would
// take the model far from its reference. Those published for DPO are 5e-7 to 1e-6.
double defaultLearningRate(const Settings& settings) { return settings.objective == "dpo" ? 1e-6 : 1e-4; }

// Takes over what --method and --objective ask for, and refuses what is for others of them.
void takeMethod(const app::CommonOptions& common, const Settings& settings, train::TrainOptions& options) {
  if (settings.method != "qlora") app::refuseIdle(common, {"quantize"}, "--method qlora");
  if (settings.method == "lora" || settings.method == "qlora") {
    check(settings.adapters);
    options.adapters = settings.adapters;
    if (settings.method == "qlora") {
      options.adapters->baseFormat =
          checkpoint::parseQuantisedFormat(settings.quantise.empty() ? "int4" : settings.quantise);
    }
    if (options.warmStart) refuse("--warm-start is for --method full: adapters have no states to begin with");
  } else if (settings.method == "full") {
    app::refuseIdle(
        common, {"lora-rank", "lora-alpha", "lora-dropout", "lora-targets", "lora-rank-stabilised", "lora-decomposed"},
        "--method lora or qlora");
  } else {
    refuse("--method is '" + settings.method + "'; it can be full, lora or qlora");
  }
  if (settings.objective == "dpo") {
    check(settings.preference);
    options.preference = settings.preference;
    if (options.crossDocuments) refuse("--cross-documents is not for --objective dpo, whose answers stand alone");
    app::refuseIdle(common, {"evaluate-tokens"}, "--objective answers; dpo evaluates all pairs");
  } else if (settings.objective == "answers") {
    app::refuseIdle(common, {"beta", "label-smoothing"}, "--objective dpo");
  } else {
    refuse("--objective is '" + settings.objective + "'; it can be answers or dpo");
  }
}

train::TrainOptions complete(const app::CommonOptions& common, const Settings& settings, int ranks) {
  constexpr std::int64_t rows = 16;  // of a step, where nothing else is said
  train::TrainOptions options = settings.options;
  if (!common.given.contains("learning-rate")) options.schedule.peak = defaultLearningRate(settings);
  if (!std::filesystem::exists(options.base)) refuse("--checkpoint: '" + options.base.string() + "' does not exist");
  if (options.sequenceLength == 0) {
    options.sequenceLength = sequenceLengthOf(checkpoint::readMetadata(options.base), train::configurationOf(options));
  }
  if (options.batchTokens == 0) options.batchTokens = (rows + ranks - 1) / ranks * ranks * options.sequenceLength;
  if (options.epochs < 0 || options.patience < 0) refuse("--epochs and --patience cannot be negative");
  const int lengths = (options.steps > 0) + (settings.texts.tokens > 0) + (options.epochs > 0);
  if (lengths > 1) refuse("give one of --epochs, --steps and --tokens");
  if (lengths == 0) options.epochs = 3;
  takeMethod(common, settings, options);
  const double fraction = settings.conversations.validationFraction;
  if (!(fraction >= 0 && fraction < 1)) refuse("--val-fraction must be at least 0 and below 1");
  options.keepBest = !options.validation.empty() || fraction > 0;
  if (options.patience > 0 && !options.keepBest) refuse("--patience needs a validation set: --val or --val-fraction");
  if (options.patience > 0 && options.evaluateEvery == 0) refuse("--patience needs --evaluate-every");
  return app::completeTrainingOptions(common, options, settings.texts);
}

int run(comm::Communicator& world, const app::CommonOptions& common, Settings& settings) {
  train::TrainOptions options;
  comm::agreeOn(world, [&] { options = complete(common, settings, world.size()); });
  if (settings.texts.dryRun) {
    app::chooseSplit(world, nullptr, settings.texts, options);
    const std::string plan = train::describePlan(options, world.size());
    if (world.rank() == 0) std::cout << plan;
    return 0;
  }
  base::watchStopSignals();
  settings.conversations.threads = common.threads;
  settings.conversations.pairs = options.preference.has_value();
  if (!finetune::namesConversations(world, options)) {
    app::refuseIdle(common, {"chat-template", "skip-bad-records"}, "conversation files, and there are datasets alone");
  }
  std::unique_ptr<checkpoint::RunLock> lock = train::takeRunFolder(world, options);
  finetune::encodeConversations(world, options, settings.conversations);
  const app::ChosenDevice chosen = app::chooseDevice(world, common, settings.texts.device);
  app::chooseSplit(world, &chosen, settings.texts, options);
  train::Trainer trainer(world, chosen.device(), options, app::describeRun(world, common, "finetune"), std::move(lock));
  const int code = trainer.run();
  if (common.json) app::printJson(trainer.summary());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  return app::runProgram(
      argc, argv,
      {.name = "finetune",
       .purpose = "Teaches a model conversations, with the loss on the answers only, or goes on with such a run.",
       .commands = {{.declare = [&](CLI::App& app) { declare(app, settings); },
                     .run = [&](comm::Communicator& world,
                                const app::CommonOptions& common) { return run(world, common, settings); }}}});
}
