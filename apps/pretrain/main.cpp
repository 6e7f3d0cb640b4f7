// pretrain: trains a language model from scratch, or goes on with a run.

#include <iostream>

#include "apps/shared/device.h"
#include "apps/shared/program.h"
#include "apps/shared/run_plan.h"
#include "apps/shared/training_options.h"
#include "common/base/signals.h"
#include "common/train/trainer.h"

namespace {

using namespace tandem;

int pretrain(comm::Communicator& world, const app::CommonOptions& common, const train::TrainOptions& declared,
             const app::TrainingTexts& texts) {
  train::TrainOptions options = app::completeTrainingOptions(common, declared, texts);
  if (texts.dryRun) {
    if (texts.cluster.empty()) app::chooseSplit(world, nullptr, texts, options);
    const std::string plan =
        texts.cluster.empty() ? train::describePlan(options, world.size()) : app::describeClusterPlan(options, texts);
    if (world.rank() == 0) std::cout << plan;
    return 0;
  }
  base::watchStopSignals();
  const app::ChosenDevice chosen = app::chooseDevice(world, common, texts.device);
  app::chooseSplit(world, &chosen, texts, options);
  train::Trainer trainer(world, chosen.device(), options, app::describeRun(world, common, "pretrain"));
  const int code = trainer.run();
  if (common.json) app::printJson(trainer.summary());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  train::TrainOptions options;
  app::TrainingTexts texts;
  return app::runProgram(
      argc, argv,
      {.name = "pretrain",
       .purpose = "Trains a language model from scratch, or goes on with a run.",
       .commands = {
           {.declare = [&](CLI::App& app) { app::declareTrainingOptions(app, options, texts); },
            .run = [&](comm::Communicator& world,
                       const app::CommonOptions& common) { return pretrain(world, common, options, texts); }}}});
}
