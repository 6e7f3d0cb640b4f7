#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/evaluate/commands.h"
#include "apps/evaluate/loaded_model.h"
#include "common/base/json.h"
#include "common/telemetry/metrics.h"
#include "common/train/loss_evaluator.h"

namespace tandem::evaluate {
namespace {

struct LossOptions {
  ModelOptions model;
  std::vector<std::string> data;
  std::int64_t sequenceLength = 0;  // 0: what the model was trained on
  std::int64_t batch = 1;
  std::int64_t maxTokens = 0;
  bool crossDocuments = false;
};

void checkFit(const LoadedModel& loaded, const data::Dataset& dataset, std::int64_t sequenceLength) {
  const std::string place = "dataset '" + dataset.path().string() + "'";
  if (dataset.description().vocabularySize > loaded.configuration.vocabularySize) {
    throw base::Error(base::ErrorKind::badData,
                      place + " has a vocabulary of " + std::to_string(dataset.description().vocabularySize) +
                          " tokens, the model of " + std::to_string(loaded.configuration.vocabularySize));
  }
  if (!loaded.tokenizer.empty() && !data::meansTheSame(dataset, loaded.tokenizer, "the checkpoint's tokenizer")) {
    throw base::Error(base::ErrorKind::badData,
                      place +
                          " was encoded with another tokenizer than the model's; encode it with "
                          "the tokenizer that the model was trained with");
  }
  if (loaded.configuration.learnedPositions && sequenceLength > loaded.configuration.maximumPositions) {
    throw base::Error(base::ErrorKind::usage, "--sequence-length " + std::to_string(sequenceLength) +
                                                  " is longer than the model's " +
                                                  std::to_string(loaded.configuration.maximumPositions) + " positions");
  }
}

void print(const LoadedModel& loaded, const std::vector<telemetry::EvaluationMetrics>& results, bool json) {
  if (json) {
    nlohmann::ordered_json document = nlohmann::ordered_json::array();
    for (const auto& result : results) document.push_back(base::parseOrderedJson(telemetry::toJson(result)));
    app::printJson(base::jsonText(document));
    return;
  }
  if (base::identity().rank != 0) return;
  for (const auto& r : results) {
    char line[160];
    std::snprintf(line, sizeof line, "loss %.6f  perplexity %.4f  bits per byte %.6f  tokens %lld", r.loss,
                  r.perplexity(), r.bitsPerByte, static_cast<long long>(r.tokens));
    std::cout << r.evaluation << " at step " << loaded.step << ": " << line << "\n";
  }
}

int run(comm::Communicator& world, const app::CommonOptions& common, const LossOptions& options) {
  const LoadedModel loaded = loadModel(world, common, options.model, Work::loss, options.sequenceLength);
  const std::int64_t sequenceLength = options.sequenceLength > 0 ? options.sequenceLength : loaded.sequenceLength;
  std::vector<std::unique_ptr<data::Dataset>> datasets;
  std::vector<std::string> names;
  comm::agreeOn(world, [&] {
    auto demandAtLeast = [](const char* option, std::int64_t value, std::int64_t least) {
      if (value >= least) return;
      throw base::Error(base::ErrorKind::usage, std::string(option) + " must be at least " + std::to_string(least));
    };
    demandAtLeast("--batch", options.batch, 1);
    demandAtLeast("--sequence-length", options.sequenceLength, 0);
    demandAtLeast("--max-tokens", options.maxTokens, 0);
    names = data::distinctNames(options.data);
    for (const std::string& path : options.data) {
      datasets.push_back(std::make_unique<data::Dataset>(path));
      checkFit(loaded, *datasets.back(), sequenceLength);
    }
  });
  train::LossEvaluator evaluator(loaded.configuration, *loaded.parameters, options.batch, sequenceLength,
                                 loaded.device(), loaded.groups.get());
  std::vector<telemetry::EvaluationMetrics> results;
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    const train::EvaluationResult result =
        evaluator.evaluate(*datasets[i], options.crossDocuments, options.maxTokens, world);
    results.push_back({.step = loaded.step,
                       .evaluation = names[i],
                       .loss = result.loss,
                       .bitsPerByte = result.bitsPerByte,
                       .tokens = result.targets});
  }
  print(loaded, results, common.json);
  return 0;
}

}  // namespace

app::Command lossCommand() {
  const auto options = std::make_shared<LossOptions>();
  return {.name = "loss",
          .purpose = "Loss, perplexity and bits per byte on datasets; the same at any rank count and batch.",
          .declare =
              [options](CLI::App& app) {
                declareModelOptions(app, options->model);
                app.add_option("--data", options->data, "Datasets")
                    ->required()
                    ->check(CLI::ExistingFile)
                    ->type_name("FILE");
                app.add_option("--sequence-length", options->sequenceLength,
                               "Tokens of a row; 0: as many as in training")
                    ->type_name("TOKENS");
                app.add_option("--batch", options->batch, "Rows at once")->type_name("ROWS");
                app.add_option("--max-tokens", options->maxTokens, "Of each dataset; 0: all")->type_name("TOKENS");
                app.add_flag("--cross-documents", options->crossDocuments,
                             "Let attention and targets cross document boundaries");
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return run(world, common, *options); }};
}

}  // namespace tandem::evaluate
