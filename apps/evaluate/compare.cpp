#include <filesystem>
#include <iostream>
#include <memory>

#include "apps/evaluate/commands.h"
#include "common/base/error.h"
#include "common/base/files.h"
#include "common/telemetry/run_comparison.h"

namespace tandem::evaluate {
namespace {

struct CompareOptions {
  std::vector<std::string> runs;
  std::string output;
};

telemetry::ComparedRun readRun(const std::string& name) {
  const std::filesystem::path folder = name;
  if (!std::filesystem::exists(folder / "metrics.jsonl")) {
    throw base::Error(base::ErrorKind::usage, "'" + name + "' is no run folder: it has no metrics.jsonl");
  }
  const std::filesystem::path description = folder / "run.json";
  const std::string run = std::filesystem::exists(description) ? base::readFile(description) : std::string();
  telemetry::ComparedRun compared{name, telemetry::readRecord(base::readFile(folder / "metrics.jsonl"), run)};
  if (compared.record.steps.empty()) {
    throw base::Error(base::ErrorKind::badData, "'" + (folder / "metrics.jsonl").string() + "' holds no step");
  }
  return compared;
}

int run(comm::Communicator& world, const app::CommonOptions& common, const CompareOptions& options) {
  std::vector<telemetry::ComparedRun> runs;
  telemetry::RunComparison comparison;
  comm::agreeOn(world, [&] {
    for (const std::string& name : options.runs) runs.push_back(readRun(name));
    comparison = telemetry::compareRuns(runs);
    if (world.rank() == 0 && !options.output.empty()) {
      base::replaceFile(options.output, telemetry::toHtml(comparison, runs));
    }
  });
  if (common.json) {
    app::printJson(telemetry::toJson(comparison));
  } else if (world.rank() == 0) {
    std::cout << telemetry::toText(comparison);
  }
  return 0;
}

}  // namespace

app::Command compareCommand() {
  const auto options = std::make_shared<CompareOptions>();
  return {.name = "compare",
          .purpose = "Runs side by side: losses, throughput, and the options in which they differ.",
          .declare =
              [options](CLI::App& app) {
                app.add_option("RUN,--run", options->runs, "Run folders")
                    ->required()
                    ->check(CLI::ExistingDirectory)
                    ->type_name("FOLDER");
                app.add_option("--output", options->output,
                               "Page with the curves of all runs over steps, tokens and time")
                    ->type_name("FILE");
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return run(world, common, *options); }};
}

}  // namespace tandem::evaluate
