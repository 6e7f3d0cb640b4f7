// Files of tasks, read as each of the formats: what is taken has questions whose answers can be right.

#include "common/data/task.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"

namespace tandem::fuzz {
namespace {

void check(const data::Task& task) {
  demand(!task.items.empty(), "a task has items");
  for (const data::TaskItem& item : task.items) {
    const bool hasChoices = task.kind == data::TaskKind::multipleChoice;
    demand(item.choices.empty() != hasChoices, "choices belong to multiple choice");
    demand(!hasChoices || (item.answer >= 0 && item.answer < std::ssize(item.choices)), "one choice is the right one");
    demand(hasChoices || !item.target.empty(), "there is an answer");
  }
}

}  // namespace

void fuzzOne(std::string_view bytes) {
  for (const char* name : {"lines.jsonl", "subject_test.csv", "own.json"}) {
    accepts([&] { check(data::parseTask(bytes, name)); });
  }
}

}  // namespace tandem::fuzz
