#include <fcntl.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "tests/common/checkpoint/state.h"

namespace tandem::checkpoint {
namespace {

using namespace test;
namespace fs = std::filesystem;

struct Child {
  pid_t process;
  int finishedSteps;  // a pipe: the number of each step whose save was finished
};

// Saves step after step from `first` on, like a run that resumes.
[[noreturn]] void saveForEver(const fs::path& run, std::int64_t first, int report) {
  const auto self = comm::makeSingleProcess();
  try {
    Writer writer(*self, run, 2);
    for (std::int64_t step = first;; ++step) {
      const State state(step, 0, 1);
      writer.save(state.metadata, state.tensors);
      while (step % 3 == 0 && !writer.idle()) writer.poll();
      writer.finish();
      if (::write(report, &step, sizeof step) != sizeof step) ::_exit(1);
    }
  } catch (const base::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  ::_exit(1);
}

Child startChild(const fs::path& run, std::int64_t first) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) ::abort();
  const pid_t process = ::fork();
  if (process == 0) {
    ::close(ends[0]);
    saveForEver(run, first, ends[1]);
  }
  ::close(ends[1]);
  return {process, ends[0]};
}

// Kills the child and returns the last step that it said it had finished.
std::int64_t kill(const Child& child, std::int64_t before) {
  ::kill(child.process, SIGKILL);
  int status = 0;
  ::waitpid(child.process, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the run ended by itself";
  std::int64_t last = before;
  for (std::int64_t step = 0; ::read(child.finishedSteps, &step, sizeof step) == sizeof step;) last = step;
  ::close(child.finishedSteps);
  return last;
}

// How long a run takes from its start to the end of its first save here, in microseconds.
std::int64_t firstSaveTime(comm::Communicator& self) {
  const RunFolder run(self);
  fs::create_directories(run.path());
  const auto start = std::chrono::steady_clock::now();
  const Child child = startChild(run.path(), 1);
  std::int64_t step = 0;
  EXPECT_EQ(::read(child.finishedSteps, &step, sizeof step), static_cast<ssize_t>(sizeof step));
  const auto end = std::chrono::steady_clock::now();
  kill(child, 0);
  return std::chrono::duration_cast<std::chrono::microseconds>(end - start).count();
}

TEST(Checkpoint, killedAtAnyMomentResumesFromTheLastFinishedStepOrALaterOne) {
  const auto self = comm::makeSingleProcess();
  const RunFolder run(*self);
  fs::create_directories(run.path());
  std::mt19937_64 random(5);
  const auto longest = static_cast<std::uint64_t>(3 * firstSaveTime(*self));
  std::int64_t last = 0;
  int resumed = 0;
  for (int round = 0; round < 40; ++round) {
    const Child child = startChild(run.path(), last + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % longest));
    const std::int64_t finished = kill(child, last);
    if (completeSteps(run.path()).empty()) {
      EXPECT_EQ(finished, 0);
      continue;
    }
    const Reader reader(*self, run.path());
    expectState(reader, reader.metadata().step);
    EXPECT_EQ(reader.metadata().step, completeSteps(run.path()).back()) << "the newest step is never a damaged one";
    EXPECT_GE(reader.metadata().step, finished);
    EXPECT_LE(reader.metadata().step, finished + 1);
    resumed += reader.metadata().step > last;
    last = reader.metadata().step;
  }
  EXPECT_GT(resumed, 5) << "hardly any round got as far as saving";
  const Writer writer(*self, run.path(), 2);
  const std::vector<std::string> left = namesIn(run.path() / "checkpoints");
  EXPECT_LE(left.size(), 3U) << "leftovers are removed, and old steps beyond keep (one more when killed in between)";
}

TEST(Checkpoint, theLockOfAKilledRunIsFree) {
  const auto self = comm::makeSingleProcess();
  const RunFolder run(*self);
  fs::create_directories(run.path());
  const Child child = startChild(run.path(), 1);
  std::int64_t step = 0;
  ASSERT_EQ(::read(child.finishedSteps, &step, sizeof step), static_cast<ssize_t>(sizeof step));
  EXPECT_EQ(errorOf([&] { Writer(*self, run.path(), 2); }).kind(), base::ErrorKind::usage);
  kill(child, 0);
  EXPECT_NO_THROW(Writer(*self, run.path(), 2));
}

}  // namespace
}  // namespace tandem::checkpoint
