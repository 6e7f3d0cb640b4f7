#pragma once
// What every executable shares: the common options, --config, --help and --version, how usage errors are reported, and
// the way from an Error to the exit code. An app declares its options and hands over what to run:
//
//   int main(int argc, char** argv) {
//     Settings settings;
//     return app::runProgram(argc, argv, {.name = "pretrain", .purpose = "Trains a language model.",
//         .commands = {{.declare = [&](CLI::App& options) { options.add_option("--steps", settings.steps, "Steps"); },
//                       .run = [&](comm::Communicator& world, const app::CommonOptions& common) {
//                         return pretrain(world, common, settings); }}}});
//   }
//
// Every rank parses the same command line; rank 0 alone prints, and all ranks leave with the same exit code. An unknown
// flag is a usage error that names the nearest known one; a flag given twice is a usage error unless it takes a list.
// A flag's default is the value its variable has when it is declared, and --help prints it with type and unit: give the
// unit by ->type_name("TOKENS").

#include <CLI/CLI.hpp>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/comm/communicator.h"

namespace tandem::app {

enum class Device { automatic, cpu, cuda };

struct CommonOptions {
  Device device = Device::automatic;
  int threads = 1;  // already set as OpenMP's thread count
  base::LogLevel logLevel = base::LogLevel::info;
  bool json = false;  // one JSON document on stdout (printJson)
  // Every option of the command as it is used, defaults included, by its name without dashes.
  std::map<std::string, std::string> used = {};
  // Those of them that the command line or --config gives.
  std::set<std::string> given = {};
};

// Refuses options that were given (names without dashes) where another one leaves them without effect: Error of kind
// usage, "--beta is for --objective dpo".
void refuseIdle(const CommonOptions& common, std::initializer_list<const char*> names,
                const std::string& whatTheyAreFor);

// One thing that a program does. `tokenize train` has the name "train"; the only command of a program has none.
struct Command {
  std::string name = {};
  std::string purpose = {};
  std::function<void(CLI::App& options)> declare = {};
  // Called after parsing, on every rank; the result is the exit code. Errors thrown are reported by comm::Session.
  std::function<int(comm::Communicator& world, const CommonOptions& common)> run = {};
};

struct Program {
  std::string name = {};
  std::string purpose = {};
  std::vector<Command> commands = {};
  // More lines of --version, given by rooms: {"SIMD", "AVX-512"}.
  std::vector<std::pair<std::string, std::string>> versions = {};
};

// The body of main: starts MPI and logging, parses, runs, and returns the exit code.
int runProgram(int argc, char** argv, const Program& program);

// Prints one JSON document (text from nlohmann::json's dump) as a line on stdout, on rank 0 only.
void printJson(const std::string& document);

}  // namespace tandem::app
