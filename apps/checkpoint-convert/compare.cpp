#include <cstdio>
#include <memory>

#include "apps/checkpoint-convert/commands.h"
#include "apps/checkpoint-convert/result.h"
#include "apps/shared/device.h"
#include "common/base/error.h"
#include "common/base/files.h"
#include "common/checkpoint/comparison.h"
#include "common/tokenizer/tokenizer_json.h"
#include "common/train/logits.h"

namespace tandem::convert {
namespace {

using base::Error;
using base::ErrorKind;
using checkpoint::ModelSource;

struct Options {
  std::string checkpoint;
  std::string against;
  std::string text;
  std::int64_t tokens = 1000;
  double tolerance = 0;  // 0: none
  app::DeviceOptions device;
};

std::vector<std::int32_t> readText(const Options& options, const ModelSource& model) {
  if (options.text.empty()) {
    throw Error(ErrorKind::usage, "--against a model needs a --text to compute logits on");
  }
  if (options.tokens < 1) throw Error(ErrorKind::usage, "--tokens must be at least 1");
  if (model.metadata().tokenizer.empty()) {
    throw Error(ErrorKind::badData, "the model " + model.place().string() + " has no tokenizer to encode --text with");
  }
  const auto tokenizer = tokenizer::fromJson(model.metadata().tokenizer, "the tokenizer of " + model.place().string());
  std::vector<std::int32_t> tokens;
  for (const tokenizer::TokenId id : tokenizer.encode(base::readFile(options.text))) {
    if (std::ssize(tokens) == options.tokens) break;
    tokens.push_back(static_cast<std::int32_t>(id));
  }
  return tokens;
}

bool isStoredLogits(const std::string& path) { return path.ends_with(".h5"); }

Json toJson(const train::LogitsAgreement& agreement) {
  return {{"tokens", agreement.tokens},
          {"max_difference", agreement.largestDifference},
          {"kl", agreement.meanDivergence},
          {"max_kl", agreement.largestDivergence},
          {"same_likeliest", agreement.sameLikeliest}};
}

// The logits are computed by rank 0 alone: there is one text.
Json compareAnswers(comm::Communicator& world, const app::CommonOptions& common, const Options& options,
                    const ModelSource& model) {
  const app::ChosenDevice chosen = app::chooseDevice(world, common, options.device);
  std::unique_ptr<ModelSource> other;
  if (!isStoredLogits(options.against)) other = checkpoint::openModel(world, options.against);
  Json result;
  comm::agreeOn(world, [&] {
    if (world.rank() != 0) return;
    const train::Device device = chosen.device();
    const train::LogitsAgreement agreement = other
                                                 ? train::compareLogits(model, *other, readText(options, model), device)
                                                 : train::compareLogits(model, options.against, device);
    result = toJson(agreement);
    if (options.tolerance > 0 && !(agreement.largestDifference <= options.tolerance)) {
      throw Error(ErrorKind::numeric, "the logits of " + options.checkpoint + " and " + options.against +
                                          " differ by " + std::to_string(agreement.largestDifference) +
                                          ", more than --tolerance");
    }
  });
  return result;
}

std::string describe(const Json& logits) {
  char line[240];
  std::snprintf(
      line, sizeof line,
      "\nlogits of %lld tokens: largest difference %.3g, KL divergence %.3g (largest %.3g), the same likeliest "
      "token after %lld",
      logits["tokens"].get<long long>(), logits["max_difference"].get<double>(), logits["kl"].get<double>(),
      logits["max_kl"].get<double>(), logits["same_likeliest"].get<long long>());
  return line;
}

int runVerify(comm::Communicator& world, const app::CommonOptions& common, const Options& options) {
  const Clock::time_point start = Clock::now();
  const auto model = checkpoint::openModel(world, options.checkpoint);
  const checkpoint::Soundness soundness = checkpoint::examine(world, *model);
  Json document = {{"place", model->place().string()},
                   {"model_type", model->configuration().type},
                   {"parameters", soundness.parameters},
                   {"bytes", soundness.bytes}};
  std::string line = model->place().string() + " is whole: " + std::to_string(soundness.parameters) +
                     " parameters, all weights are numbers; " + describeWork(soundness.bytes, secondsSince(start));
  if (!options.against.empty()) {
    document["against"] = options.against;
    document["logits"] = compareAnswers(world, common, options, *model);
    if (world.rank() == 0) line += describe(document["logits"]);
  }
  report(common, document, line);
  return 0;
}

int runDiff(comm::Communicator& world, const app::CommonOptions& common, const Options& options) {
  const auto first = checkpoint::openModel(world, options.checkpoint);
  const auto second = checkpoint::openModel(world, options.against);
  const std::vector<checkpoint::ParameterDifference> differences = checkpoint::compare(world, *first, *second);
  Json list = Json::array();
  std::string lines;
  for (const checkpoint::ParameterDifference& each : differences) {
    if (each.same()) continue;
    Json entry = {{"name", each.name}};
    std::string line = each.name + ": ";
    if (!each.problem.empty()) {
      entry["problem"] = each.problem;
      line += each.problem;
    } else {
      entry["different"] = each.different;
      entry["max_difference"] = each.largest;
      entry["relative"] = each.relative;
      char numbers[120];
      std::snprintf(numbers, sizeof numbers, "%lld elements differ, by %.3g at most, %.3g of its length",
                    static_cast<long long>(each.different), each.largest, each.relative);
      line += numbers;
    }
    lines += line + "\n";
    list.push_back(std::move(entry));
  }
  const std::size_t same = differences.size() - list.size();
  report(common, {{"identical", list.empty()}, {"same_parameters", same}, {"differences", list}},
         lines + std::to_string(same) + " of " + std::to_string(differences.size()) + " parameters are the same");
  return 0;
}

}  // namespace

app::Command verifyCommand() {
  const auto options = std::make_shared<Options>();
  return {
      .name = "verify",
      .purpose = "Whether a model is whole (checksums, shapes, weights that are numbers), and answers as another does.",
      .declare =
          [options](CLI::App& app) {
            app.add_option("--checkpoint", options->checkpoint,
                           "A run folder, one step's folder, a Hugging Face folder or a GGUF file")
                ->required()
                ->type_name("PATH");
            app.add_option("--against", options->against,
                           "Another such, whose logits on --text are compared; or an .h5 file with tokens and logits")
                ->type_name("PATH");
            app.add_option("--text", options->text, "Text to compute logits on")
                ->check(CLI::ExistingFile)
                ->type_name("FILE");
            app.add_option("--tokens", options->tokens, "Of the text, from its beginning")->type_name("TOKENS");
            app.add_option("--tolerance", options->tolerance,
                           "Exit code 1 if any logit differs by more; 0: any difference is fine")
                ->type_name("NUMBER");
            app::declareDeviceOptions(app, options->device);
          },
      .run = [options](comm::Communicator& world,
                       const app::CommonOptions& common) { return runVerify(world, common, *options); }};
}

app::Command diffCommand() {
  const auto options = std::make_shared<Options>();
  return {.name = "diff",
          .purpose = "Where the weights of two models differ, of whatever format either is.",
          .declare =
              [options](CLI::App& app) {
                app.add_option("--checkpoint", options->checkpoint, "A model")->required()->type_name("PATH");
                app.add_option("--against", options->against, "Another model")->required()->type_name("PATH");
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return runDiff(world, common, *options); }};
}

}  // namespace tandem::convert
