// The order in which pipeline ranks go through micro batches: complete, within its memory, and without a deadlock
// though every message waits for both its sides.

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "common/sharding/grid.h"
#include "common/sharding/pipeline.h"

namespace tandem::sharding {
namespace {

using Tasks = std::vector<StageTask>;

struct Case {
  int ranks, runs;
  std::int64_t microBatches;
  std::string text() const {
    return "pp=" + std::to_string(ranks) + ",vp=" + std::to_string(runs) + ", " + std::to_string(microBatches) +
           " micro batches";
  }
};

std::vector<Case> cases() {
  std::vector<Case> result;
  for (int ranks = 2; ranks <= 5; ++ranks) {
    for (int runs = 1; runs <= 4; ++runs) {
      for (int groups = 1; groups <= 4; ++groups) result.push_back({ranks, runs, groups * ranks});
    }
    for (const std::int64_t microBatches : {1, 7}) result.push_back({ranks, 1, microBatches});
  }
  return result;
}

// Ranks that carry out their tasks, and messages between them that complete when both sides have come to them. Of one
// group and direction a rank's messages follow each other, as on a device's stream.
class Pipeline {
 public:
  Pipeline(const Case& one, std::function<int(int before)> groupOfLink)
      : case_(one), groupOf_(std::move(groupOfLink)) {}

  // With as many places for micro batches of each run as `slots` says. Whether all comes to an end.
  bool run(const std::vector<Tasks>& tasks, const std::function<std::int64_t(int rank, int run)>& slots) {
    std::vector<std::size_t> next(tasks.size(), 0);
    std::vector<bool> begun(tasks.size(), false);
    bool moves = true;
    while (moves) {
      moves = deliver();
      for (int rank = 0; rank < case_.ranks; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        if (next[r] == tasks[r].size()) continue;
        const StageTask& task = tasks[r][next[r]];
        const Place place{rank, task.run, task.microBatch % slots(rank, task.run)};
        if (!begun[r]) {
          // What was sent from this place must have left it.
          if (task.isForward && !sending_[place].empty()) continue;
          begun[r] = moves = true;
          if (const auto source = sourceOf(rank, task)) start(rank, *source, task, false, place);
        }
        if (waiting_.contains(rank)) continue;
        if (const auto target = targetOf(rank, task)) start(rank, *target, task, true, place);
        begun[r] = false;
        moves = true;
        ++next[r];
      }
    }
    for (std::size_t rank = 0; rank < tasks.size(); ++rank) {
      if (next[rank] != tasks[rank].size()) return false;
    }
    return std::ranges::all_of(queues_, [](const auto& queue) { return queue.second.empty(); });
  }

 private:
  using Place = std::tuple<int, int, std::int64_t>;  // rank, run, slot
  using Cut = std::tuple<bool, int, std::int64_t>;   // direction, the stage in front of it, micro batch
  using Queue = std::tuple<int, bool, int>;          // rank, direction, group
  struct Message {
    int peer = 0;
    bool isSend = false;
    Cut cut;
    Place place;
  };

  int stageOf(int rank, const StageTask& task) const { return task.run * case_.ranks + rank; }
  int lastStage() const { return case_.ranks * case_.runs - 1; }
  std::optional<int> neighbour(int stage) const {
    return stage < 0 || stage > lastStage() ? std::nullopt : std::optional(stage % case_.ranks);
  }
  std::optional<int> sourceOf(int rank, const StageTask& task) const {
    return neighbour(stageOf(rank, task) + (task.isForward ? -1 : 1));
  }
  std::optional<int> targetOf(int rank, const StageTask& task) const {
    return neighbour(stageOf(rank, task) + (task.isForward ? 1 : -1));
  }

  void start(int rank, int peer, const StageTask& task, bool isSend, const Place& place) {
    const bool isBehind = isSend == task.isForward;  // the cut is behind this stage
    const int before = isBehind ? rank : peer;
    const Cut cut{task.isForward, stageOf(rank, task) - (isBehind ? 0 : 1), task.microBatch};
    queues_[{rank, task.isForward, groupOf_(before)}].push_back({peer, isSend, cut, place});
    if (isSend) {
      sending_[place].insert(cut);
    } else {
      waiting_.insert(rank);
    }
  }

  // Completes the messages that both sides have come to.
  bool deliver() {
    bool any = false;
    for (auto& [queue, messages] : queues_) {
      const auto [rank, isForward, group] = queue;
      if (messages.empty() || !messages.front().isSend) continue;
      const Message sent = messages.front();
      std::deque<Message>& others = queues_[{sent.peer, isForward, group}];
      if (others.empty() || others.front().isSend || others.front().peer != rank) continue;
      EXPECT_EQ(others.front().cut, sent.cut) << case_.text() << ": another message was taken for this one";
      others.pop_front();
      messages.pop_front();
      sending_[sent.place].erase(sent.cut);
      waiting_.erase(sent.peer);
      any = true;
    }
    return any;
  }

  Case case_;
  std::function<int(int)> groupOf_;
  std::map<Queue, std::deque<Message>> queues_;
  std::map<Place, std::set<Cut>> sending_;
  std::set<int> waiting_;  // ranks, for what they receive
};

std::vector<Tasks> trainingOf(const Case& one) {
  std::vector<Tasks> tasks;
  for (int rank = 0; rank < one.ranks; ++rank) {
    tasks.push_back(stageSchedule(rank, one.ranks, one.runs, one.microBatches));
  }
  return tasks;
}

bool trains(const Case& one, std::function<int(int)> groupOfLink) {
  const std::vector<Tasks> tasks = trainingOf(one);
  return Pipeline(one, std::move(groupOfLink)).run(tasks, [&](int rank, int run) {
    return microBatchesInFlight(tasks[static_cast<std::size_t>(rank)], run);
  });
}

TEST(Schedule, hasEveryMicroBatchOfEveryRunOnceEachWayInOrder) {
  for (const Case& one : cases()) {
    for (const Tasks& tasks : trainingOf(one)) {
      std::map<int, std::int64_t> forwards, backwards;
      for (const StageTask& task : tasks) {
        auto& passes = task.isForward ? forwards : backwards;
        EXPECT_EQ(task.microBatch, passes[task.run]++) << one.text();
        EXPECT_LE(backwards[task.run], forwards[task.run]) << one.text();
      }
      for (int run = 0; run < one.runs; ++run) {
        EXPECT_EQ(forwards[run], one.microBatches) << one.text();
        EXPECT_EQ(backwards[run], one.microBatches) << one.text();
      }
    }
  }
}

// That of Megatron-LM, of the first of two ranks with two runs and four micro batches.
TEST(Schedule, interleavesRunsOfLayers) {
  const Tasks expected = {{true, 0, 0},  {true, 1, 0},  {true, 0, 1},  {true, 1, 1},  {true, 2, 0}, {false, 0, 1},
                          {true, 3, 0},  {false, 1, 1}, {true, 2, 1},  {false, 0, 0}, {true, 3, 1}, {false, 1, 0},
                          {false, 2, 1}, {false, 3, 1}, {false, 2, 0}, {false, 3, 0}};
  EXPECT_EQ(stageSchedule(0, 2, 2, 4), expected);
}

TEST(Schedule, keepsNoMoreMicroBatchesInFlightThanItsWarmUpBegins) {
  for (const Case& one : cases()) {
    for (int rank = 0; rank < one.ranks; ++rank) {
      const Tasks tasks = stageSchedule(rank, one.ranks, one.runs, one.microBatches);
      std::int64_t inFlight = 0, most = 0, sum = 0;
      for (const StageTask& task : tasks) most = std::max(most, inFlight += task.isForward ? 1 : -1);
      const std::int64_t behind = one.ranks - 1 - rank;
      const std::int64_t warmUp = one.runs == 1 ? behind : 2 * behind + std::int64_t{one.runs - 1} * one.ranks;
      EXPECT_EQ(most, std::min(warmUp + 1, one.microBatches * one.runs)) << one.text() << ", rank " << rank;
      for (int run = 0; run < one.runs; ++run) {
        EXPECT_LE(microBatchesInFlight(tasks, run), 2 * one.ranks) << one.text() << ", rank " << rank;
        sum += microBatchesInFlight(tasks, run);
      }
      EXPECT_GE(sum, most);
      if (one.runs == 1) {
        EXPECT_EQ(sum, microBatchesInFlight(rank, one.ranks, one.microBatches)) << one.text();
      }
    }
  }
}

// Passes that all ranks have ended, where each pass of each run takes one unit of time and messages none.
std::int64_t unitsOf(const Case& one) {
  const std::vector<Tasks> tasks = trainingOf(one);
  std::vector<std::size_t> next(tasks.size(), 0);
  std::vector<std::int64_t> free(tasks.size(), 0);
  using Pass = std::tuple<bool, std::int64_t, std::int64_t>;  // direction, micro batch, stage
  std::map<Pass, std::int64_t> ends;
  const std::int64_t last = std::int64_t{one.ranks} * one.runs - 1;
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t rank = 0; rank < tasks.size(); ++rank) {
      if (next[rank] == tasks[rank].size()) continue;
      const auto [isForward, microBatch, run] = tasks[rank][next[rank]];
      const std::int64_t stage = std::int64_t{run} * one.ranks + static_cast<std::int64_t>(rank);
      std::int64_t begin = free[rank];
      if (isForward ? stage > 0 : stage < last) {
        const auto before = ends.find({isForward, microBatch, isForward ? stage - 1 : stage + 1});
        if (before == ends.end()) continue;
        begin = std::max(begin, before->second);
      }
      ends[{isForward, microBatch, stage}] = free[rank] = begin + 1;
      ++next[rank];
      moves = true;
    }
  }
  return std::ranges::max(free);
}

// A pass of one run takes 1 / runs of the time of a whole stage's.
TEST(Schedule, fillsAndDrainsInStepsOfOneRun) {
  for (const Case& one : cases()) {
    EXPECT_EQ(unitsOf(one), 2 * (one.microBatches * one.runs + one.ranks - 1)) << one.text();
  }
}

TEST(Schedule, comesToItsEndThoughMessagesWaitForBothSides) {
  for (const Case& one : cases()) {
    EXPECT_TRUE(trains(one, [&](int before) { return one.runs > 1 ? linkGroup(before, one.ranks) : 0; })) << one.text();
  }
}

TEST(Schedule, wouldNotEndWithOneGroupOfMessagesAroundTheRing) {
  EXPECT_FALSE(trains({2, 2, 4}, [](int) { return 0; }));
  EXPECT_FALSE(trains({4, 2, 8}, [](int) { return 0; }));
  EXPECT_FALSE(trains({3, 3, 6}, [](int before) { return before % 2; })) << "an odd ring takes three";
}

TEST(Schedule, linksOfARankAreOfDifferentGroups) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    for (int before = 0; before < ranks; ++before) {
      EXPECT_NE(linkGroup(before, ranks), linkGroup((before + 1) % ranks, ranks)) << before << " of " << ranks;
      EXPECT_LT(linkGroup(before, ranks), linkGroups(ranks));
    }
  }
}

// As the evaluator goes through batches: groups of up to as many as there are ranks, and one place for each run.
TEST(Schedule, ofForwardPassesComesToItsEnd) {
  for (const Case& one : cases()) {
    for (const std::int64_t left : {std::int64_t{0}, std::int64_t{1}}) {
      Tasks tasks;
      const std::int64_t batches = one.microBatches + left, together = one.runs > 1 ? one.ranks : 1;
      for (std::int64_t first = 0; first < batches; first += together) {
        for (StageTask task : forwardSchedule(one.runs, std::min(together, batches - first))) {
          task.microBatch += first;
          tasks.push_back(task);
        }
      }
      const std::vector<Tasks> ofRanks(static_cast<std::size_t>(one.ranks), tasks);
      const auto groupOfLink = [&](int before) { return one.runs > 1 ? linkGroup(before, one.ranks) : 0; };
      EXPECT_TRUE(Pipeline(one, groupOfLink).run(ofRanks, [](int, int) { return std::int64_t{1}; })) << one.text();
    }
  }
}

}  // namespace
}  // namespace tandem::sharding
