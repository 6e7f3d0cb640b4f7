#include <memory>

#include "apps/checkpoint-convert/commands.h"
#include "apps/checkpoint-convert/result.h"
#include "common/base/error.h"
#include "common/checkpoint/derived_models.h"
#include "common/checkpoint/step_writer.h"

namespace tandem::convert {
namespace {

struct Options {
  std::vector<std::string> checkpoints;
  std::vector<double> weights;
  std::string adapter;
  std::string output;
  int shards = 0;
};

int run(comm::Communicator& world, const app::CommonOptions& common, const Options& options) {
  const Clock::time_point start = Clock::now();
  std::vector<std::unique_ptr<checkpoint::ModelSource>> models;
  for (const std::string& path : options.checkpoints) models.push_back(checkpoint::openModel(world, path));
  std::unique_ptr<checkpoint::ModelSource> merged;
  comm::agreeOn(world, [&] {
    if (options.shards < 0) throw base::Error(base::ErrorKind::usage, "--shards must be at least 0");
    merged = checkpoint::averageOf(std::move(models), options.weights);
    if (!options.adapter.empty()) merged = checkpoint::withAdapter(std::move(merged), options.adapter);
  });
  checkpoint::writeModel(world, options.output, *merged, options.shards > 0 ? options.shards : world.size());
  const std::int64_t bytes = bytesAt(options.output);
  report(common, {{"output", options.output}, {"bytes", bytes}, {"seconds", secondsSince(start)}},
         "wrote " + options.output + ": " + describeWork(bytes, secondsSince(start)));
  return 0;
}

}  // namespace

app::Command mergeCommand() {
  const auto options = std::make_shared<Options>();
  return {.name = "merge",
          .purpose = "Makes one checkpoint of several by their mean, or of a model and its LoRA adapter.",
          .declare =
              [options](CLI::App& app) {
                app.add_option(
                       "--checkpoint", options->checkpoints,
                       "Models of one shape; or one, a run of finetuning whose adapters are put into their base")
                    ->required()
                    ->type_name("PATH");
                app.add_option("--weights", options->weights, "Of each in the mean; without them all count alike")
                    ->type_name("NUMBER");
                app.add_option("--adapter", options->adapter, "A folder with an adapter in PEFT's form, added to it")
                    ->type_name("FOLDER");
                app.add_option("--output", options->output, "The run folder to make")->required()->type_name("FOLDER");
                app.add_option("--shards", options->shards, "Files of the checkpoint; 0: one for each rank")
                    ->type_name("FILES");
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return run(world, common, *options); }};
}

}  // namespace tandem::convert
