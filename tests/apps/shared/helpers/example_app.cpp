// A program written on apps/shared, with two commands. Started by program_test.

#include <omp.h>

#include <string>
#include <vector>

#include "apps/shared/program.h"

namespace {

namespace app = tandem::app;
namespace comm = tandem::comm;

struct CountOptions {
  std::int64_t steps = 100;
  double rate = 0.5;
  std::vector<std::string> inputs = {};
  bool fast = false;
};

}  // namespace

int main(int argc, char** argv) {
  CountOptions count;
  std::string path;
  const app::Program program = {
      .name = "example",
      .purpose = "Shows what apps share.",
      .commands = {{.name = "count",
                    .purpose = "Counts steps.",
                    .declare =
                        [&](CLI::App& options) {
                          options.add_option("--steps", count.steps, "Steps to count")->type_name("STEPS");
                          options.add_option("--rate", count.rate, "Steps a second");
                          options.add_option("--input", count.inputs, "Files")->required();
                          options.add_flag("--fast", count.fast, "Count fast");
                        },
                    .run =
                        [&](comm::Communicator&, const app::CommonOptions& common) {
                          TANDEM_LOG(debug) << "counting";
                          std::string used;
                          for (const auto& [name, value] : common.used) used += " " + name + "=" + value;
                          if (common.json) {
                            app::printJson("{\"steps\":" + std::to_string(count.steps) + "}");
                          } else {
                            app::printJson("threads " + std::to_string(omp_get_max_threads()) + used);
                          }
                          return 0;
                        }},
                   {.name = "check",
                    .purpose = "Checks a file.",
                    .declare = [&](CLI::App& options) { options.add_option("--path", path)->check(CLI::ExistingFile); },
                    .run = [](comm::Communicator&, const app::CommonOptions&) { return 4; }}},
      .versions = {{"SIMD", "made up"}}};
  return app::runProgram(argc, argv, program);
}
