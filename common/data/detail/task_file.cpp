// Task files of one's own (docs/formats.md).

#include <algorithm>

#include "common/base/files.h"
#include "common/data/detail/lines.h"
#include "common/data/detail/task_formats.h"
#include "common/data/python_text.h"

namespace tandem::data::detail {
namespace {

TaskKind kindOf(const Record& file) {
  const std::string kind = file.text("kind");
  if (kind == "multiple_choice") return TaskKind::multipleChoice;
  if (kind == "cloze") return TaskKind::cloze;
  if (kind == "generation") return TaskKind::generation;
  file.fail("\"kind\" is '" + kind + "', neither multiple_choice, cloze nor generation");
}

AnswerForm formOf(const Record& file) {
  const std::string match = file.text("match");
  if (match == "text") return AnswerForm::text;
  if (match == "number") return AnswerForm::number;
  file.fail("\"match\" is '" + match + "', neither text nor number");
}

// The prompt with what the record has in place of each {field}.
std::string filled(const std::string& prompt, const Record& record) {
  std::string text;
  for (std::size_t at = 0;;) {
    const std::size_t open = prompt.find('{', at);
    text += prompt.substr(at, open - at);
    if (open == std::string::npos) return text;
    const std::size_t close = prompt.find('}', open);
    if (close == std::string::npos) record.fail("the task's \"prompt\" has a { without }");
    text += record.text(prompt.substr(open + 1, close - open - 1));
    at = close + 1;
  }
}

TaskItem itemOf(const Record& record, const Task& task, const std::string& prompt) {
  TaskItem item;
  item.question = filled(prompt, record);
  if (task.kind != TaskKind::multipleChoice) {
    item.target = record.text("answer");
    if (stripped(item.target).empty()) record.fail("\"answer\" is empty");
    if (task.kind == TaskKind::cloze) item.target = task.delimiter + item.target;
    return item;
  }
  item.choices = record.texts("choices");
  if (item.choices.size() < 2) record.fail("there must be two \"choices\" or more");
  if (std::ranges::find(item.choices, std::string()) != item.choices.end()) record.fail("a choice is empty");
  // The answer is the place of the right choice, counted from 0, or its text.
  if (record.at("answer").is_string()) {
    item.answer = std::ranges::find(item.choices, record.text("answer")) - item.choices.begin();
  } else {
    item.answer = record.number("answer");
  }
  if (item.answer < 0 || item.answer >= std::ssize(item.choices)) record.fail("\"answer\" is none of the choices");
  return item;
}

void readGenerationSettings(const Record& file, Task& task) {
  const bool writes = task.kind == TaskKind::generation;
  for (const char* field : {"until", "max_tokens", "match", "ignore_case", "ignore_punctuation"}) {
    if (!writes && file.has(field)) file.fail("\"" + std::string(field) + "\" is for tasks of kind generation");
  }
  if (file.has("until")) task.stops = file.texts("until");
  if (std::ranges::find(task.stops, std::string()) != task.stops.end()) file.fail("a text of \"until\" is empty");
  if (file.has("max_tokens")) task.maxTokens = file.number("max_tokens");
  if (task.maxTokens < 1) file.fail("\"max_tokens\" must be at least 1");
  if (file.has("match")) task.form = formOf(file);
  if (file.has("ignore_case")) task.ignoresCase = file.flag("ignore_case");
  if (file.has("ignore_punctuation")) task.ignoresPunctuation = file.flag("ignore_punctuation");
}

// Written in the file itself, or a line each in the file of that name beside it.
std::vector<Record> recordsOf(const Record& file, const std::filesystem::path& name) {
  if (!file.at("items").is_string()) return file.objects("items");
  const std::filesystem::path path = name.parent_path() / file.text("items");
  std::error_code failure;
  if (!std::filesystem::is_regular_file(path, failure)) file.fail("\"items\" names '" + path.string() + "', no file");
  std::vector<Record> records;
  forEachLine(base::readFile(path), path,
              [&](std::string_view line, const std::string& place) { records.push_back(Record::parse(line, place)); });
  return records;
}

}  // namespace

Task parseTaskFile(std::string_view bytes, const std::filesystem::path& name) {
  const Record file = Record::parse(bytes, "'" + name.string() + "'");
  file.demandOnly({"task", "kind", "description", "prompt", "target_delimiter", "fewshot_delimiter", "until",
                   "max_tokens", "match", "ignore_case", "ignore_punctuation", "items"});
  Task task;
  task.name = file.text("task");
  if (task.name.empty()) file.fail("\"task\" is empty");
  task.kind = kindOf(file);
  if (file.has("description")) task.description = file.text("description");
  if (file.has("target_delimiter")) task.delimiter = file.text("target_delimiter");
  if (file.has("fewshot_delimiter")) task.exampleSeparator = file.text("fewshot_delimiter");
  readGenerationSettings(file, task);
  const std::string prompt = file.has("prompt") ? file.text("prompt") : "{question}";
  for (const Record& record : recordsOf(file, name)) task.items.push_back(itemOf(record, task, prompt));
  if (task.kind == TaskKind::cloze) task.delimiter.clear();  // it is a part of what must come
  return task;
}

}  // namespace tandem::data::detail
