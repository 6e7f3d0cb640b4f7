#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/evaluate/commands.h"
#include "apps/evaluate/loaded_model.h"
#include "common/base/json.h"
#include "common/base/units.h"
#include "common/checkpoint/model_source.h"
#include "common/runtime/decoding_speed.h"
#include "common/telemetry/metrics.h"
#include "common/telemetry/preflight_probes.h"

namespace tandem::evaluate {
namespace {

using Json = nlohmann::ordered_json;

constexpr double bandwidthSeconds = 0.3;

struct SpeedOptions {
  std::string checkpoint;
  std::string shard;
  std::vector<std::string> precisions = {"fp32"};
  std::vector<std::string> formats = {"none"};
  std::vector<std::int64_t> prompts = {512};
  std::vector<std::int64_t> answers = {128};
  std::vector<std::int64_t> batches = {1};
  int repetitions = 5;
  model::CacheFormat caches = model::CacheFormat::asStored;
  app::DeviceOptions device;
};

void demandPositive(const char* option, const std::vector<std::int64_t>& values) {
  if (std::ranges::min(values) >= 1) return;
  throw base::Error(base::ErrorKind::usage, std::string(option) + " must be at least 1");
}

void demandRoom(const SpeedOptions& options, const checkpoint::ModelSource& model) {
  const std::int64_t most = model.configuration().maximumPositions;
  const std::int64_t longest = std::ranges::max(options.prompts) + std::ranges::max(options.answers);
  if (longest <= most) return;
  throw base::Error(base::ErrorKind::usage, "the longest of --prompt-tokens and of --generated-tokens are " +
                                                std::to_string(longest) + " tokens together; the model of '" +
                                                options.checkpoint + "' has " + std::to_string(most) +
                                                " positions; give fewer");
}

Json toJson(const char* name, const runtime::MeanAndDeviation& value) {
  return {{name, value.mean}, {std::string(name) + "_deviation", value.deviation}};
}

// One case of one form of the model. Collective.
Json measure(comm::Communicator& world, const LoadedModel& loaded, const SpeedOptions& options,
             const runtime::SpeedCase& what, double bandwidth) {
  const train::Device device = loaded.device();
  std::unique_ptr<runtime::Generator> generator;
  comm::agreeOn(world, [&] {
    generator = std::make_unique<runtime::Generator>(loaded.configuration, *loaded.parameters, what.batch,
                                                     what.promptTokens + what.generatedTokens, device.backend,
                                                     device.stream, device.arena, loaded.split.get(), options.caches);
  });
  const runtime::SpeedResult speed = runtime::measureSpeed(*generator, loaded.configuration.vocabularySize, what,
                                                           options.repetitions, world, loaded.copies());
  Json result = {
      {"prompt_tokens", what.promptTokens}, {"generated_tokens", what.generatedTokens}, {"batch", what.batch}};
  result.update(toJson("first_token_seconds", speed.firstTokenSeconds));
  result.update(toJson("prompt_tokens_per_second", speed.promptRate));
  if (speed.decodeRate) {
    result.update(toJson("decode_tokens_per_second", *speed.decodeRate));
    result["decode_bytes_per_second"] = *speed.decodeBytesPerSecond;
    result["bandwidth_share"] = *speed.decodeBytesPerSecond / bandwidth;
  } else {
    for (const char* name : {"decode_tokens_per_second", "decode_tokens_per_second_deviation",
                             "decode_bytes_per_second", "bandwidth_share"}) {
      result[name] = nullptr;
    }
  }
  result["weight_bytes"] = loaded.parameters->weightBytes();
  result["cache_bytes"] = generator->cacheBytes();
  result["activation_bytes"] = device.arena->bytes();
  result["peak_memory_bytes"] = comm::allReduceScalar(world, telemetry::peakResidentBytes(), comm::Reduction::maximum);
  return result;
}

std::string rate(const Json& result, const char* name) {
  if (result[name].is_null()) return "-";
  char text[48];
  std::snprintf(text, sizeof text, "%.1f +- %.1f", result[name].get<double>(),
                result[std::string(name) + "_deviation"].get<double>());
  return text;
}

void printHeading() {
  std::printf("%-5s %-5s %6s %6s %5s  %11s  %18s  %18s  %9s  %10s %10s %10s\n", "", "", "prompt", "answer", "batch",
              "first token", "prompt tokens/s", "decode tokens/s", "bandwidth", "weights", "cache", "peak");
}

void print(const Json& result) {
  char share[16] = "-";
  if (!result["bandwidth_share"].is_null()) {
    std::snprintf(share, sizeof share, "%.0f %%", 100 * result["bandwidth_share"].get<double>());
  }
  const auto bytes = [&](const char* name) { return base::formatBytes(result[name].get<std::int64_t>()); };
  std::printf("%-5s %-5s %6lld %6lld %5lld  %9.1f ms  %18s  %18s  %9s  %10s %10s %10s\n",
              result["precision"].get<std::string>().c_str(), result["quantize"].get<std::string>().c_str(),
              result["prompt_tokens"].get<long long>(), result["generated_tokens"].get<long long>(),
              result["batch"].get<long long>(), 1e3 * result["first_token_seconds"].get<double>(),
              rate(result, "prompt_tokens_per_second").c_str(), rate(result, "decode_tokens_per_second").c_str(), share,
              bytes("weight_bytes").c_str(), bytes("cache_bytes").c_str(), bytes("peak_memory_bytes").c_str());
  std::fflush(stdout);
}

// Measures all cases and prints them; the model is loaded once for each form of its weights.
class SpeedTable {
 public:
  SpeedTable(comm::Communicator& world, const app::CommonOptions& common, const SpeedOptions& options)
      : world_(world), common_(common), options_(options), prints_(!common.json && world.rank() == 0) {}

  int run() {
    comm::agreeOn(world_, [&] {
      demandPositive("--prompt-tokens", options_.prompts);
      demandPositive("--generated-tokens", options_.answers);
      demandPositive("--batch", options_.batches);
      demandPositive("--repetitions", {options_.repetitions});
      for (const std::string& precision : options_.precisions) train::parsePrecision(precision);
    });
    const auto source = checkpoint::openModel(world_, options_.checkpoint);
    comm::agreeOn(world_, [&] { demandRoom(options_, *source); });
    for (const std::string& precision : options_.precisions) {
      for (const std::string& format : options_.formats) measureForm(precision, format);
    }
    document_["results"] = std::move(results_);
    if (common_.json) app::printJson(base::jsonText(document_));
    return 0;
  }

 private:
  void measureForm(const std::string& precision, const std::string& format) {
    telemetry::forgetPeakResident();
    const LoadedModel loaded = loadModel(world_, common_,
                                         {.checkpoint = options_.checkpoint,
                                          .precision = precision,
                                          .quantize = format,
                                          .shard = options_.shard,
                                          .device = options_.device});
    if (document_.empty()) describe(loaded);
    for (const std::int64_t batch : options_.batches) {
      for (const std::int64_t prompt : options_.prompts) {
        for (const std::int64_t answer : options_.answers) {
          Json result = {{"precision", precision}, {"quantize", format}};
          result.update(measure(world_, loaded, options_,
                                {.promptTokens = prompt, .generatedTokens = answer, .batch = batch}, bandwidth_));
          if (prints_) print(result);
          results_.push_back(std::move(result));
        }
      }
    }
  }

  // Once: what is measured, and the bandwidth that decoding is held against.
  void describe(const LoadedModel& loaded) {
    const train::Device device = loaded.device();
    bandwidth_ = telemetry::measureReadBandwidth(world_, device.backend, device.stream, bandwidthSeconds);
    bandwidth_ = comm::allReduceScalar(world_, bandwidth_) / world_.size();
    document_ = {{"checkpoint", loaded.folder},
                 {"device", device.backend.description()},
                 {"ranks", world_.size()},
                 {"copies", loaded.copies()},
                 {"kv_cache", options_.caches == model::CacheFormat::int8 ? "int8" : "none"},
                 {"threads", common_.threads},
                 {"repetitions", options_.repetitions},
                 {"read_bandwidth_bytes_per_second", bandwidth_}};
    if (!prints_) return;
    std::printf("%s, %d rank%s%s; a rank reads memory at %s/s\n", loaded.folder.c_str(), world_.size(),
                world_.size() > 1 ? "s" : "", options_.shard.empty() ? "" : (", " + options_.shard).c_str(),
                base::formatBytes(static_cast<std::int64_t>(bandwidth_)).c_str());
    printHeading();
  }

  comm::Communicator& world_;
  const app::CommonOptions& common_;
  const SpeedOptions& options_;
  bool prints_;
  double bandwidth_ = 0;
  Json document_ = Json::object();
  Json results_ = Json::array();
};

void declare(CLI::App& app, SpeedOptions& options) {
  app.add_option("--checkpoint", options.checkpoint,
                 "A run folder (its newest complete step), one step's folder, a Hugging Face folder or a GGUF file")
      ->required()
      ->type_name("PATH");
  declareShard(app, options.shard);
  declareCaches(app, options.caches);
  app.add_option("--prompt-tokens", options.prompts, "Lengths of prompts")->delimiter(',')->type_name("TOKENS");
  app.add_option("--generated-tokens", options.answers, "Lengths of answers; 1: the prompts alone")
      ->delimiter(',')
      ->type_name("TOKENS");
  app.add_option("--batch", options.batches, "Answers that a copy of the model writes at once")
      ->delimiter(',')
      ->type_name("SEQUENCES");
  app.add_option("--precision", options.precisions, "Storage of weights and activations: fp32, bf16, fp16")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--quantize", options.formats, "What the matrices are held in: none, int8, int4")
      ->delimiter(',')
      ->check(CLI::IsMember({"none", "int8", "int4"}))
      ->type_name("FORMAT");
  app.add_option("--repetitions", options.repetitions, "Of each measurement, after one to warm up")
      ->type_name("NUMBER");
  app::declareDeviceOptions(app, options.device);
}

}  // namespace

app::Command speedCommand() {
  const auto options = std::make_shared<SpeedOptions>();
  return {.name = "speed",
          .purpose =
              "Latency, tokens per second, memory and share of its bandwidth, for lists of lengths, batches, "
              "precisions and quantised formats.",
          .declare = [options](CLI::App& app) { declare(app, *options); },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return SpeedTable(world, common, *options).run(); }};
}

}  // namespace tandem::evaluate
