#pragma once
// What tasks gave, as JSON by the names of lm-evaluation-harness, as a log of items, and as a table.

#include <cstdint>
#include <string>
#include <vector>

#include "common/data/task.h"
#include "common/train/task_evaluation.h"

namespace tandem::evaluate {

// {"results": {task: {"acc,none": ..., "acc_stderr,none": ...}}, "groups", "n-shot", "n-samples", "higher_is_better"}
std::string taskResultsJson(const std::vector<data::Task>& tasks, const std::vector<train::TaskResult>& results,
                            std::int64_t fewShot);

// A JSON line for each item.
std::string taskLog(const data::Task& task, const train::TaskResult& result, const train::TaskPrompts& prompts);

// For people.
std::string taskTable(const std::vector<train::TaskResult>& results);

}  // namespace tandem::evaluate
