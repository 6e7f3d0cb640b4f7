#pragma once
// The formats of tasks, one by one: a record, or the file, to a task and its items. Wording and cleaning of texts are
// those of the definitions in lm-evaluation-harness that have the task's name.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/detail/record.h"
#include "common/data/task.h"

namespace tandem::data::detail {

// A public task whose file has a JSON record a line.
struct LineFormat {
  std::vector<std::string> fields;  // that tell the format, all of them
  Task settings;                    // without items
  TaskItem (*item)(const Record& record);
};

// In the order to try them in.
const std::vector<LineFormat>& lineFormats();

// MMLU; the subject is the file's name without _test, _dev or _val.
Task parseMmlu(std::string_view bytes, const std::filesystem::path& name);

// A task file of one's own.
Task parseTaskFile(std::string_view bytes, const std::filesystem::path& name);

}  // namespace tandem::data::detail
