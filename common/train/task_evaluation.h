#pragma once
// Measures a model by tasks: how often the right choice is the likeliest, the right word comes next, or the text that
// the model writes has the right answer. Items are shared out over ranks and computed in batches; the results depend on
// neither, and follow lm-evaluation-harness 0.4.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/data/task.h"
#include "common/model/configuration.h"
#include "common/model/transformer.h"
#include "common/runtime/decoding_ranks.h"
#include "common/runtime/parameter_store.h"
#include "common/train/answer_match.h"
#include "common/train/device.h"
#include "common/train/task_prompts.h"

namespace tandem::train {

// A number by the harness's names: "acc", "acc_norm" (log likelihood by characters of the choice), "acc_bytes" (by its
// bytes), "exact_match", "perplexity".
struct TaskMetric {
  std::string name;
  std::string filter = "none";
  double value = 0;
  // Standard error of the mean over items, by the sample's deviation; of a perplexity, by the delta method. Nothing for
  // a single item.
  std::optional<double> standardError = std::nullopt;
  bool higherIsBetter = true;
};

// What was computed of an item.
struct ItemOutcome {
  std::int64_t item = 0;                           // its place in the task
  std::vector<runtime::ContinuationScore> scores;  // of its choices, or its target
  std::string text;                                // that the model wrote
  std::vector<MatchedAnswer> answers;              // in that text
  std::vector<double> values;                      // of each metric
};

struct TaskResult {
  std::string name;
  std::string group;
  std::int64_t items = 0;  // that were measured
  std::vector<TaskMetric> metrics;
  std::vector<ItemOutcome> outcomes;  // in the order of the items
};

struct TaskOptions {
  PromptOptions prompts;
  std::int64_t limit = 0;      // items of a task; 0: all
  std::int64_t batch = 8;      // items at once
  std::int64_t maxTokens = 0;  // of an answer that is written; 0: as the task says
  model::CacheFormat caches = model::CacheFormat::asStored;
};

// Collective; every rank gets the whole result. `examples` are where few-shot examples come from: the task's own items,
// or others. Items are shared out over the copies of the model: the ranks that `split` says decode together hold one,
// or, where it is null, every rank. Throws, on every rank, Error of kind usage or badData, naming the task and the
// item.
TaskResult evaluateTask(const data::Task& task, std::span<const data::TaskItem> examples,
                        const model::Configuration& configuration, const runtime::ParameterStore& parameters,
                        const tokenizer::Tokenizer& tokenizer, const TaskOptions& options, const Device& device,
                        comm::Communicator& communicator, runtime::DecodingRanks* split = nullptr);

// The metrics of a group's tasks, weighted by their numbers of items, for names that all of them have.
std::vector<TaskMetric> combine(std::span<const TaskResult> tasks);

}  // namespace tandem::train
