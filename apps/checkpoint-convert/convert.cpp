#include <memory>
#include <optional>

#include "apps/checkpoint-convert/commands.h"
#include "apps/checkpoint-convert/result.h"
#include "common/base/error.h"
#include "common/checkpoint/derived_models.h"
#include "common/checkpoint/gguf_model.h"
#include "common/checkpoint/hugging_face.h"
#include "common/checkpoint/quantised_model.h"
#include "common/checkpoint/step_writer.h"

namespace tandem::convert {
namespace {

using base::Error;
using base::ErrorKind;

struct Options {
  std::string input;
  std::string output;
  int shards = 0;
  std::string format = "auto";
  std::string type = "keep";
  double largestFile = 5;
};

void declareInput(CLI::App& app, Options& options, const char* flag, const char* what) {
  app.add_option(flag, options.input, what)->required()->type_name("PATH");
}

void declareShards(CLI::App& app, Options& options) {
  app.add_option("--shards", options.shards, "Files of the checkpoint; 0: one for each rank")->type_name("FILES");
}

int shardsOf(const comm::Communicator& world, const Options& options) {
  constexpr int most = 99999;  // as their names have digits
  if (options.shards < 0 || options.shards > most) {
    throw Error(ErrorKind::usage, "--shards must be from 0 to " + std::to_string(most));
  }
  return options.shards > 0 ? options.shards : world.size();
}

int finish(const app::CommonOptions& common, const Options& options, Clock::time_point start, Json document) {
  const double seconds = secondsSince(start);
  const std::int64_t bytes = bytesAt(options.output);
  document["output"] = options.output;
  document["bytes"] = bytes;
  document["seconds"] = seconds;
  report(common, document, "wrote " + options.output + ": " + describeWork(bytes, seconds));
  return 0;
}

int runImport(comm::Communicator& world, const app::CommonOptions& common, const Options& options) {
  const Clock::time_point start = Clock::now();
  const auto model = checkpoint::openModel(world, options.input);
  int shards = 0;
  comm::agreeOn(world, [&] { shards = shardsOf(world, options); });
  checkpoint::writeModel(world, options.output, *model, shards);
  return finish(common, options, start,
                {{"model_type", model->configuration().type}, {"tensors", model->parameters().size()}});
}

bool isGguf(const Options& options) {
  if (options.format == "auto") return options.output.ends_with(".gguf");
  if (options.format != "gguf" && options.format != "huggingface" && options.format != "peft") {
    throw Error(ErrorKind::usage, "--format is '" + options.format + "'; there are auto, huggingface, gguf and peft");
  }
  return options.format == "gguf";
}

std::optional<checkpoint::Encoding> typeOf(const Options& options, bool gguf) {
  if (options.type == "keep") return std::nullopt;
  const checkpoint::Encoding type = checkpoint::parseEncoding(options.type);
  if (!checkpoint::canEncode(type) || (!gguf && !checkpoint::plainType(type))) {
    throw Error(ErrorKind::usage, "--type " + options.type +
                                      " is not written; a Hugging Face folder takes F32, F16 and "
                                      "BF16, a GGUF file Q8_0 and Q4_0 too");
  }
  return type;
}

void writeExport(comm::Communicator& world, const Options& options, bool gguf,
                 std::optional<checkpoint::Encoding> type, checkpoint::Verification verification) {
  const auto model = checkpoint::openModel(world, options.input, verification);
  if (gguf) return checkpoint::writeGguf(*model, options.output, {.type = type}, world);
  const auto largest = static_cast<std::int64_t>(options.largestFile * 1e9);
  checkpoint::writeHuggingFace(*model, options.output, {.type = type, .largestFile = largest}, world);
}

int runExport(comm::Communicator& world, const app::CommonOptions& common, const Options& options) {
  using checkpoint::Verification;
  const Clock::time_point start = Clock::now();
  bool gguf = false;
  std::optional<checkpoint::Encoding> type;
  comm::agreeOn(world, [&] {
    gguf = isGguf(options);
    type = typeOf(options, gguf);
    if (!(options.largestFile > 0)) throw Error(ErrorKind::usage, "--max-file-size must be above 0");
  });
  if (options.format == "peft") {
    checkpoint::writeAdapter(world, checkpoint::Reader(world, options.input), options.output);
    return finish(common, options, start, {{"format", options.format}});
  }
  try {
    writeExport(world, options, gguf, type, Verification::whenRead);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::badData) throw;
    // Where a shard is damaged, this says so and goes back to the step before; whatever else is wrong is thrown again.
    writeExport(world, options, gguf, type, Verification::atOnce);
  }
  return finish(common, options, start, {{"format", gguf ? "gguf" : "huggingface"}, {"type", options.type}});
}

int runQuantize(comm::Communicator& world, const app::CommonOptions& common, const Options& options) {
  const Clock::time_point start = Clock::now();
  checkpoint::QuantisedFormat format{};
  int shards = 0;
  comm::agreeOn(world, [&] {
    format = checkpoint::parseQuantisedFormat(options.format);
    shards = shardsOf(world, options);
  });
  const auto model = checkpoint::openModel(world, options.input);
  checkpoint::writeQuantised(world, options.output, *model, format, shards);
  return finish(common, options, start, {{"format", options.format}});
}

int runReshard(comm::Communicator& world, const app::CommonOptions& common, const Options& options) {
  const Clock::time_point start = Clock::now();
  const checkpoint::Reader step(world, options.input);
  int shards = 0;
  comm::agreeOn(world, [&] { shards = shardsOf(world, options); });
  checkpoint::reshard(world, options.output, step, shards);
  return finish(common, options, start, {{"shards", shards}});
}

}  // namespace

app::Command importCommand() {
  const auto options = std::make_shared<Options>();
  return {.name = "import",
          .purpose = "Makes a checkpoint of a Hugging Face folder or a GGUF file.",
          .declare =
              [options](CLI::App& app) {
                declareInput(app, *options, "--input", "A Hugging Face folder or a GGUF file");
                app.add_option("--output", options->output, "The run folder to make; its step is 0")
                    ->required()
                    ->type_name("FOLDER");
                declareShards(app, *options);
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return runImport(world, common, *options); }};
}

app::Command exportCommand() {
  const auto options = std::make_shared<Options>();
  return {.name = "export",
          .purpose = "Writes a model as a Hugging Face folder or a GGUF file; the same bytes at any rank count.",
          .declare =
              [options](CLI::App& app) {
                declareInput(app, *options, "--checkpoint",
                             "A run folder, one step's folder, a Hugging Face folder or a GGUF file");
                app.add_option("--output", options->output, "The folder or .gguf file to make")
                    ->required()
                    ->type_name("PATH");
                app.add_option(
                       "--format", options->format,
                       "huggingface, gguf, auto: one of these by the ending of --output; peft: the adapters alone")
                    ->type_name("NAME");
                app.add_option("--type", options->type,
                               "Of the weights: keep, F32, F16, BF16; of a GGUF file also Q8_0 and Q4_0")
                    ->type_name("NAME");
                app.add_option("--max-file-size", options->largestFile, "Of a file of a Hugging Face folder")
                    ->type_name("GB");
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return runExport(world, common, *options); }};
}

app::Command quantizeCommand() {
  const auto options = std::make_shared<Options>();
  return {.name = "quantize",
          .purpose = "Makes a checkpoint of small integers of a model: int8 a row, or int4 in groups of 32.",
          .declare =
              [options](CLI::App& app) {
                declareInput(app, *options, "--checkpoint",
                             "A run folder, one step's folder, a Hugging Face folder or a GGUF file");
                app.add_option("--format", options->format, "int8 or int4; embedding and head are int8 in both")
                    ->required()
                    ->type_name("NAME");
                app.add_option("--output", options->output, "The run folder to make")->required()->type_name("FOLDER");
                declareShards(app, *options);
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return runQuantize(world, common, *options); }};
}

app::Command reshardCommand() {
  const auto options = std::make_shared<Options>();
  return {.name = "reshard",
          .purpose = "Writes a checkpoint again, all it holds, in another number of files.",
          .declare =
              [options](CLI::App& app) {
                declareInput(app, *options, "--checkpoint",
                             "A run folder (its newest complete step) or one step's folder");
                app.add_option("--output", options->output, "The run folder to make")->required()->type_name("FOLDER");
                declareShards(app, *options);
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return runReshard(world, common, *options); }};
}

}  // namespace tandem::convert
