#include "apps/shared/training_options.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/shared/version.h"
#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/units.h"
#include "common/data/batch_stream.h"

namespace tandem::app {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw base::Error(base::ErrorKind::usage, message); }

bool parseSwitch(const std::string& option, const std::string& text) {
  if (text != "on" && text != "off") refuse(option + " is '" + text + "'; it can be on or off");
  return text == "on";
}

void demandAtLeast(const std::string& option, std::int64_t value, std::int64_t least) {
  if (value < least) refuse(option + " is " + std::to_string(value) + "; it must be at least " + std::to_string(least));
}

std::int64_t parseRows(const std::string& text) {
  std::int64_t rows = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
  if (error != std::errc() || stop != text.data() + text.size()) {
    refuse("--micro-batch is '" + text + "'; it can be a number of rows, 0 or auto");
  }
  return rows;
}

void check(const train::TrainOptions& options) {
  demandAtLeast("--batch-tokens", options.batchTokens, 1);
  demandAtLeast("--sequence-length", options.sequenceLength, 1);
  demandAtLeast("--micro-batch", options.microBatch, 0);
  demandAtLeast("--warmup-steps", options.schedule.warmupSteps, 0);
  demandAtLeast("--evaluate-every", options.evaluateEvery, 0);
  demandAtLeast("--evaluate-tokens", options.evaluateTokens, 0);
  demandAtLeast("--checkpoint-every", options.checkpointEvery, 0);
  demandAtLeast("--sample-tokens", options.sampleTokens, 1);
  demandAtLeast("--max-bad-steps", options.maxBadSteps, 1);
  demandAtLeast("--keep", options.keep, 0);
  static_cast<void>(optim::LossScaler(options.lossScale));  // refuses a scale that cannot be
  if (options.optimizer.states != base::DType::f32 && options.optimizer.method == optim::Method::muon) {
    refuse("--optimizer-states bf16 is for --optimizer adamw: Muon's momentum stays in fp32");
  }
  auto demand = [](bool holds, const std::string& option, const std::string& range) {
    if (!holds) refuse(option + " must be " + range);
  };
  auto isPart = [](double value) { return value >= 0 && value <= 1; };
  auto decays = [](float value) { return value >= 0 && value < 1; };
  demand(options.schedule.peak > 0 && std::isfinite(options.schedule.peak), "--learning-rate", "a number above 0");
  demand(isPart(options.schedule.lastFraction), "--last-fraction", "from 0 to 1");
  demand(isPart(options.schedule.decayFraction), "--decay-fraction", "from 0 to 1");
  demand(decays(options.optimizer.beta1), "--beta1", "at least 0 and below 1");
  demand(decays(options.optimizer.beta2), "--beta2", "at least 0 and below 1");
  demand(options.optimizer.epsilon > 0, "--epsilon", "above 0");
  demand(options.optimizer.weightDecay >= 0, "--weight-decay", "0 (none) or above");
  demand(options.clipNorm >= 0, "--clip-norm", "0 (no clipping) or above");
}

// Of finetune there may be validation data without --val.
bool isEvaluated(const train::TrainOptions& options) { return !options.validation.empty() || options.keepBest; }

void refuseIdleOptions(const CommonOptions& common, const train::TrainOptions& options, const TrainingTexts& texts) {
  if (options.schedule.kind != optim::ScheduleKind::warmupStableDecay)
    refuseIdle(common, {"decay-fraction"}, "--schedule wsd");
  if (options.schedule.kind == optim::ScheduleKind::constant) {
    refuseIdle(common, {"last-fraction"}, "schedules that fall; --schedule constant does not");
  }
  if (options.storage != base::DType::f16) {
    refuseIdle(common, {"loss-scale", "loss-scale-growth-steps"}, "--precision fp16");
  }
  if (texts.microBatch != "auto" && texts.shard != "auto") {
    refuseIdle(common, {"memory-limit"}, "--micro-batch auto or --shard auto");
  }
  if (options.samplePrompts.empty()) refuseIdle(common, {"sample-tokens"}, "--sample-prompt");
  if (!isEvaluated(options)) {
    refuseIdle(common, {"evaluate-tokens"}, "datasets to evaluate on: --val");
    if (options.samplePrompts.empty()) {
      refuseIdle(common, {"evaluate-every"},
                 "datasets to evaluate on (--val), or texts to go on from (--sample-prompt)");
    }
  }
  if (!options.telemetry) refuseIdle(common, {"gradient-norm-groups"}, "--telemetry on, which records them");
}

}  // namespace

void declareTrainingOptions(CLI::App& app, train::TrainOptions& options, TrainingTexts& texts) {
  app.add_option("--model", options.model, "Model configuration (JSON with Hugging Face field names)")
      ->required()
      ->check(CLI::ExistingFile)
      ->type_name("FILE");
  declareRunOptions(app, options, texts);
  app.get_option("--batch-tokens")->required();
  app.get_option("--sequence-length")->required();
}

void declareRunOptions(CLI::App& app, train::TrainOptions& options, TrainingTexts& texts) {
  app.add_option("--data", options.data, "Training datasets, each with an optional weight")->type_name("FILE[:WEIGHT]");
  app.add_option("--val", options.validation, "Datasets to evaluate on")->check(CLI::ExistingFile)->type_name("FILE");
  app.add_option("--output", options.output, "Run folder: checkpoints, metrics, run.json")->type_name("FOLDER");
  app.add_option("--steps", options.steps, "Steps of the whole run")->type_name("STEPS");
  app.add_option("--tokens", texts.tokens, "The same in tokens, instead of --steps")->type_name("TOKENS");
  app.add_option("--batch-tokens", options.batchTokens, "Tokens of a step, over all ranks")->type_name("TOKENS");
  app.add_option("--sequence-length", options.sequenceLength, "Tokens of a row")->type_name("TOKENS");
  app.add_option("--micro-batch", texts.microBatch,
                 "Rows that a rank computes at once; 0: enough to be fast; auto: the most that fit into memory")
      ->type_name("ROWS|auto");
  app.add_option("--memory-limit", texts.memoryLimit,
                 "Of a rank, for --micro-batch auto; 0: nine tenths of what is free")
      ->type_name("GIB");
  declareShard(app, texts.shard);
  app.add_flag("--cross-documents", options.crossDocuments, "Let attention and targets cross document boundaries");
  app.add_option("--seed", options.seed, "Of the initial weights and the order of samples")->type_name("NUMBER");
  app.add_option("--learning-rate", options.schedule.peak, "Peak of the schedule")->type_name("RATE");
  app.add_option("--schedule", texts.schedule, "constant, linear, cosine or wsd")->type_name("NAME");
  app.add_option("--warmup-steps", options.schedule.warmupSteps, "Steps of rising learning rate")->type_name("STEPS");
  app.add_option("--last-fraction", options.schedule.lastFraction, "Learning rate at the end, as a part of the peak")
      ->type_name("PART");
  app.add_option("--decay-fraction", options.schedule.decayFraction, "Part of the steps that wsd decays in")
      ->type_name("PART");
  app.add_option("--optimizer", texts.optimizer, "adamw, or muon for the layers' matrices")->type_name("NAME");
  app.add_option("--beta1", options.optimizer.beta1, "AdamW: decay of the first moment")->type_name("PART");
  app.add_option("--beta2", options.optimizer.beta2, "AdamW: decay of the second moment")->type_name("PART");
  app.add_option("--epsilon", options.optimizer.epsilon, "AdamW: added to the root of the second moment")
      ->type_name("NUMBER");
  app.add_option("--weight-decay", options.optimizer.weightDecay, "Of matrices; norms and biases have none")
      ->type_name("RATE");
  app.add_option("--clip-norm", options.clipNorm, "Largest norm of the gradient; 0: no clipping")->type_name("NORM");
  app.add_option("--max-bad-steps", options.maxBadSteps, "Steps in a row without a finite loss that end the run")
      ->type_name("STEPS");
  app.add_option("--precision", texts.precision, "Storage of weights and activations: fp32, bf16 or fp16")
      ->type_name("NAME");
  app.add_option("--loss-scale", options.lossScale.initial, "fp16: scale of the loss to begin with, a power of two")
      ->type_name("NUMBER");
  app.add_option("--loss-scale-growth-steps", options.lossScale.growthSteps,
                 "fp16: good steps after which the loss scale is doubled")
      ->type_name("STEPS");
  app.add_option("--optimizer-states", texts.optimizerStates, "AdamW's moments: fp32, or bf16 with stochastic rounding")
      ->type_name("NAME");
  app.add_option("--optimizer-memory", texts.optimizerMemory,
                 "Where a GPU's optimizer states and masters lie: device, or host, updated over the bus")
      ->type_name("device|host");
  app.add_option("--overlap", texts.overlap,
                 "Exchange gradients and weights while computing; off shows what the exchanges take: on or off")
      ->type_name("on|off");
  app.add_option("--cuda-graphs", texts.cudaGraphs, "Record micro batches on a GPU and replay them: on or off")
      ->type_name("on|off");
  app.add_flag("--fp8", options.fp8, "Multiply in the layers' matrices 8-bit floats; with --precision bf16");
  app.add_option("--recompute", texts.recompute,
                 "Activations to compute again: none, selective or full; auto: none, unless a plan is made")
      ->type_name("NAME");
  app.add_option("--evaluate-every", options.evaluateEvery, "0: at the end only")->type_name("STEPS");
  app.add_option("--evaluate-tokens", options.evaluateTokens, "Of each dataset; 0: all")->type_name("TOKENS");
  app.add_option("--checkpoint-every", options.checkpointEvery, "0: at the end only")->type_name("STEPS");
  app.add_option("--keep", options.keep, "Checkpoints to leave in the folder; 0: all")->type_name("NUMBER");
  app.add_option("--time-limit", texts.timeLimit,
                 "Stop with a checkpoint and exit code 75 after 90s, 30m, 2h...; 0s: never")
      ->type_name("TIME");
  app.add_option("--resume", options.resume, "auto, never, or a checkpoint to go on from")
      ->type_name("auto|never|PATH");
  app.add_option("--on-straggler", texts.onStraggler,
                 "When a rank holds the others up: warn, or checkpoint-and-exit with exit code 75")
      ->type_name("NAME");
  app.add_option("--telemetry", texts.telemetry,
                 "Record each step and watch the ranks: on, or off, with evaluations and events alone")
      ->type_name("on|off");
  app.add_flag("--gradient-norm-groups", options.gradientNormGroups,
               "Record the norm of the gradient by group of layers too");
  app.add_option("--sample-prompt", options.samplePrompts,
                 "Texts that the model goes on from at each evaluation, for events.jsonl and report.html")
      ->type_name("TEXT");
  app.add_option("--sample-tokens", options.sampleTokens, "Of each sample")->type_name("TOKENS");
  app.add_flag("--profile", options.profile, "Print the seconds of each operator at the end");
  app.add_flag("--dry-run", texts.dryRun, "Print parameters, memory and FLOP of a step, and stop; reads no data");
  app.add_option("--cluster", texts.cluster, "With --dry-run: plan the run for the cluster described there")
      ->check(CLI::ExistingFile)
      ->type_name("FILE");
  declareDeviceOptions(app, texts.device);
}

void declareShard(CLI::App& app, std::string& text) {
  app.add_option(
         "--shard", text,
         "How the model is split over the ranks, such as dp=2,tp=2,zero=1, or pp=4,vp=2 (stages of a pipeline, "
         "and runs of layers that each rank of it interleaves), or auto: as planned for the ranks that there are; "
         "by default every rank has all of it")
      ->type_name("GRID");
}

train::TrainOptions completeTrainingOptions(const CommonOptions& common, train::TrainOptions options,
                                            const TrainingTexts& texts) {
  options.optimizer.method = optim::parseMethod(texts.optimizer);
  options.schedule.kind = optim::parseSchedule(texts.schedule);
  if (texts.recompute != "auto") options.recompute = graph::parseRecompute(texts.recompute);
  if (!texts.shard.empty() && texts.shard != "auto" && texts.cluster.empty()) {
    options.grid = sharding::parseGrid(texts.shard, base::identity().ranks);
  }
  options.timeLimit = base::parseDuration(texts.timeLimit);
  options.storage = train::parsePrecision(texts.precision);
  options.optimizer.states = optim::parseStates(texts.optimizerStates);
  options.optimizer.statesOnHost = optim::parseStatesOnHost(texts.optimizerMemory);
  options.overlap = parseSwitch("--overlap", texts.overlap);
  options.cudaGraphs = parseSwitch("--cuda-graphs", texts.cudaGraphs);
  if (options.fp8 && options.storage != base::DType::bf16) {
    refuse("--fp8 rounds operands that are stored as bfloat16; give --precision bf16 with it");
  }
  if (texts.microBatch != "auto") options.microBatch = parseRows(texts.microBatch);
  options.onStraggler = train::parseOnStraggler(texts.onStraggler);
  options.telemetry = parseSwitch("--telemetry", texts.telemetry);
  if (!options.telemetry && options.onStraggler != train::OnStraggler::warn) {
    refuse("--on-straggler checkpoint-and-exit needs --telemetry on, which finds stragglers");
  }
  check(options);
  refuseIdleOptions(common, options, texts);
  if (!(texts.memoryLimit >= 0)) refuse("--memory-limit must be 0 (what is free) or above");
  if (options.epochs == 0 && (options.steps > 0) == (texts.tokens > 0) && !texts.dryRun) {
    refuse("give either --steps or --tokens, above zero");
  }
  if (texts.tokens > 0) options.steps = (texts.tokens + options.batchTokens - 1) / options.batchTokens;
  if (texts.dryRun) return options;
  if (!texts.cluster.empty()) refuse("--cluster plans for other machines than these; it goes with --dry-run");
  if (options.data.empty()) refuse("--data is required");
  for (const std::string& text : options.data) {
    const std::filesystem::path path = data::parseWeightedPath(text).path;
    if (!std::filesystem::exists(path)) refuse("--data: '" + path.string() + "' does not exist");
  }
  if (options.output.empty()) refuse("--output is required");
  return options;
}

std::string describeRun(comm::Communicator& world, const CommonOptions& common, const std::string& program) {
  nlohmann::ordered_json options;
  for (const auto& [name, value] : common.used) {
    options[name] = value;
    try {
      static_cast<void>(base::jsonText(options[name]));
    } catch (const nlohmann::json::exception&) {  // a path may be any bytes, JSON may not
      refuse("--" + name + " is no UTF-8 text, as which run.json has to tell of it");
    }
  }
  return base::jsonText(nlohmann::ordered_json{{"program", program},
                                               {"version", version()},
                                               {"options", options},
                                               {"ranks", world.size()},
                                               {"threads", common.threads},
                                               {"hosts", comm::allGatherTexts(world, base::identity().host)}},
                        2);
}

}  // namespace tandem::app
