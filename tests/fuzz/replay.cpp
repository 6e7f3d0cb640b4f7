// Runs a target without libFuzzer: over its corpus, then over mutations of it that are the same at every run.
//
//   NAME_fuzz CORPUS_FOLDER [MUTATIONS]      NAME_fuzz FILE...
//
// An input that crashes, hangs or takes too much memory is left in the working folder as NAME_fuzz.input, ready to be
// given as the only argument, and for the corpus once it is mended.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <vector>

#include "common/base/files.h"
#include "common/base/random.h"
#include "tests/fuzz/fuzz.h"

// Of the sanitizers, where the program is built with one.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace tandem::fuzz {
namespace {

constexpr int secondsOfAnInput = 10;  // of the processor: on a busy machine they take longer
constexpr rlim_t memoryBytes = rlim_t{2} << 30;
constexpr std::size_t longestMutation = 1 << 16;

std::string_view current;
std::string nameOfCurrent;

// Only calls that a signal handler may make.
void keepCurrent() {
  if (current.data() == nullptr) return;
  const int file = ::open(nameOfCurrent.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const bool kept = file >= 0 && ::write(file, current.data(), current.size()) == static_cast<ssize_t>(current.size());
  constexpr std::string_view said = "the input is left in the working folder as NAME_fuzz.input\n";
  if (kept && ::write(STDERR_FILENO, said.data(), said.size()) < 0) return;
}

void onSignal(int signal) {
  keepCurrent();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void watch(const std::string& program) {
  nameOfCurrent = std::filesystem::path(program).filename().string() + ".input";
  for (const int signal : {SIGPROF, SIGABRT}) std::signal(signal, onSignal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(keepCurrent);
    return;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, onSignal);
  const rlimit limit{memoryBytes, memoryBytes};  // what is beyond is a std::bad_alloc, which no target lets pass
  ::setrlimit(RLIMIT_AS, &limit);
}

void limitTime(int seconds) {
  const itimerval limit{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
}

void runOne(std::string_view input) {
  current = input;
  limitTime(secondsOfAnInput);
  try {
    fuzzOne(input);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the target let through: %s\n", error.what());
    std::abort();
  }
  limitTime(0);
  current = {};  // what ends the process from here on has no input to blame
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& corpus) : corpus_(corpus) {}

  std::string next() {
    std::string input = pick();
    for (std::size_t left = 1 + below(4); left > 0; --left) mutate(input);
    input.resize(std::min(input.size(), longestMutation));
    return input;
  }

 private:
  std::size_t below(std::size_t limit) { return random_.nextBelow(limit); }
  const std::string& pick() { return corpus_[below(corpus_.size())]; }

  void mutate(std::string& input) {
    // Bytes at which lengths, signs and syntax turn.
    static constexpr std::string_view edges("\x00\x01\x7f\x80\xff\xc0\xed\xf4\"\\{}[],:=#\n 0-9.", 24);
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = 1 + below(std::min(1 + below(64), input.size() - at + 1));
    switch (below(7)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        return;
      case 1:
        if (at < input.size()) input[at] = edges[below(edges.size())];
        return;
      case 2:
        input.insert(at, 1, edges[below(edges.size())]);
        return;
      case 3:
        input.erase(at, length);
        return;
      case 4:  // the same again, up to very often
        input.insert(at, repeated(input.substr(at, length), std::size_t{1} << below(12)));
        return;
      case 5: {  // from another place or another input
        const std::string& other = pick();
        const std::size_t from = below(other.size() + 1);
        input.replace(at, below(2) * length, other.substr(from, 1 + below(32)));
        return;
      }
      default:  // a number becomes an extreme one
        if (at < input.size() && input[at] >= '0' && input[at] <= '9') {
          static const std::vector<std::string> numbers = {"-1",    "9223372036854775807", "18446744073709551615",
                                                           "1e308", "4294967296",          "0.5"};
          input.replace(at, 1, numbers[below(numbers.size())]);
        } else {
          input.resize(at);
        }
    }
  }

  static std::string repeated(const std::string& part, std::size_t times) {
    std::string all;
    for (std::size_t i = 0; i < times && all.size() < longestMutation; ++i) all += part;
    return all;
  }

  const std::vector<std::string>& corpus_;
  base::RandomStream random_{1, 0};
};

std::vector<std::string> readCorpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::string> corpus;
  for (const auto& path : paths) corpus.push_back(base::readFile(path));
  return corpus;
}

int replay(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fprintf(stderr, "give a folder and a number of mutations, or files\n");
    return 2;
  }
  if (!std::filesystem::is_directory(arguments[0])) {
    for (const std::string& path : arguments) runOne(base::readFile(path));
    return 0;
  }
  const std::vector<std::string> corpus = readCorpus(arguments[0]);
  demand(!corpus.empty(), "the corpus has inputs");
  for (const std::string& input : corpus) runOne(input);
  runOne("");
  const int mutations = arguments.size() > 1 ? std::atoi(arguments[1].c_str()) : 1000;
  Mutator mutator(corpus);
  for (int i = 0; i < mutations; ++i) runOne(mutator.next());
  std::printf("%zu inputs and %d mutations\n", corpus.size(), mutations);
  return 0;
}

}  // namespace
}  // namespace tandem::fuzz

int main(int argc, char** argv) {
  tandem::fuzz::watch(argv[0]);
  return tandem::fuzz::replay({argv + 1, argv + argc});
}
