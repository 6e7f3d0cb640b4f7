#pragma once
// Errors: one exception type whose kind decides the exit code of a program.
//
// A message says what failed, where (file, dataset, offset, line of the input), why, and what to do. The rank, the
// host and the source place are added here, so that a line in the log of a 64-rank job can be acted on alone.

#include <source_location>
#include <stdexcept>
#include <string>

namespace tandem::base {

enum class ErrorKind {
  usage,          // the command line or a configuration asks for something impossible
  badData,        // the input is malformed, damaged or does not fit together
  file,           // the file system refused
  communication,  // another rank, or the link to it, failed
  device,         // a processor, an accelerator or its memory failed
  numeric,        // the computation produced values that are no numbers
};

const char* name(ErrorKind kind);

// The exit code that a program ends with after an error of this kind: 2 usage, 3 bad data, 1 otherwise.
int exitCode(ErrorKind kind);

constexpr int exitSubmitAgain = 75;  // stopped on a signal or time limit after a complete checkpoint

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::source_location place = std::source_location::current());

  // An error as another rank reported it: what() stays as that rank wrote it. `onEveryRank` says that every rank of the
  // job throws it alike, so that one message and an orderly end are enough.
  static Error relayed(ErrorKind kind, const std::string& message, const std::string& what, bool onEveryRank);

  ErrorKind kind() const { return kind_; }
  // The message alone; what() has the rank, the host and the source place too.
  const std::string& message() const { return message_; }
  bool onEveryRank() const { return onEveryRank_; }

 private:
  Error(ErrorKind kind, const std::string& message, const std::string& what, bool onEveryRank);

  ErrorKind kind_;
  std::string message_;
  bool onEveryRank_ = false;
};

// Which process this is, for error messages and log records. Set once at start, by comm.
struct Identity {
  int rank = 0;
  int ranks = 1;
  std::string host;
};
void setIdentity(const Identity& identity);
const Identity& identity();

// The text of errno's value, as strerror gives it, thread safe.
std::string systemErrorText(int errorNumber);

// Called when a TANDEM_ASSERT does not hold: prints the condition and the place, and aborts.
[[noreturn]] void assertionFailed(const char* condition, const std::string& message, std::source_location place);

}  // namespace tandem::base

// An invariant of the program itself. Never reachable by input: bad input throws Error.
#define TANDEM_ASSERT(condition, message)                                                                    \
  do {                                                                                                       \
    if (!(condition)) ::tandem::base::assertionFailed(#condition, message, std::source_location::current()); \
  } while (false)
