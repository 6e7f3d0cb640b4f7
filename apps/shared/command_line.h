#pragma once
// From the arguments to the options of a command, without a rank or a group: every rank does it alike.

#include <optional>
#include <string>
#include <vector>

#include "apps/shared/program.h"

namespace tandem::app {

struct ParsedCommandLine {
  const Command* command = nullptr;
  CommonOptions common = {};
  bool threadsGiven = false;
  // --help or --version were asked for: print this and leave with exit code 0; the command is not to be run.
  std::optional<std::string> answer = std::nullopt;
};

// Fills the variables that the command declared. Throws Error of kind usage for a command line (or a --config file)
// that can't be obeyed, with the flag, the reason, and the nearest known name for an unknown one.
ParsedCommandLine parseCommandLine(const std::vector<std::string>& arguments, const Program& program);

}  // namespace tandem::app
