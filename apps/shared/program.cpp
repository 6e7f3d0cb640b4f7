#include "apps/shared/program.h"

#include <omp.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "apps/shared/command_line.h"
#include "apps/shared/threads.h"
#include "common/base/error.h"
#include "common/comm/session.h"

namespace tandem::app {
namespace {

// On rank 0 only. A full disk or a closed pipe behind stdout is an error like any other.
void printLine(const std::string& text) {
  if (base::identity().rank != 0) return;
  const bool written = std::fputs((text + "\n").c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!written) {
    throw base::Error(base::ErrorKind::file, "cannot write to standard output: " + base::systemErrorText(errno));
  }
}

int chooseThreads(comm::Communicator& world, const ParsedCommandLine& parsed) {
  const int fair = fairThreadCount(world);
  if (parsed.threadsGiven) return parsed.common.threads;
  return std::getenv("OMP_NUM_THREADS") ? omp_get_max_threads() : fair;
}

int runOnRank(comm::Communicator& world, const std::vector<std::string>& arguments, const Program& program) {
  ParsedCommandLine parsed;
  comm::agreeOn(world, [&] { parsed = parseCommandLine(arguments, program); });
  if (parsed.answer) {
    std::string text = *parsed.answer;
    while (text.ends_with('\n')) text.pop_back();
    printLine(text);
    return 0;
  }
  base::startLogging(parsed.common.logLevel);
  parsed.common.threads = chooseThreads(world, parsed);
  parsed.common.used["threads"] = std::to_string(parsed.common.threads);
  omp_set_num_threads(parsed.common.threads);
  return parsed.command->run(world, parsed.common);
}

}  // namespace

void refuseIdle(const CommonOptions& common, std::initializer_list<const char*> names,
                const std::string& whatTheyAreFor) {
  for (const char* name : names) {
    if (!common.given.contains(name)) continue;
    throw base::Error(base::ErrorKind::usage, "--" + std::string(name) + " is for " + whatTheyAreFor);
  }
}

int runProgram(int argc, char** argv, const Program& program) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return comm::Session::run(argc, argv,
                            [&](comm::Communicator& world) { return runOnRank(world, arguments, program); });
}

void printJson(const std::string& document) { printLine(document); }

}  // namespace tandem::app
