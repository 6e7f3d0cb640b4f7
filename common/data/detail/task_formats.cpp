#include "common/data/detail/task_formats.h"

#include <algorithm>
#include <array>

#include "common/base/error.h"
#include "common/data/detail/csv.h"
#include "common/data/python_text.h"

namespace tandem::data::detail {
namespace {

// Of HellaSwag: brackets are left over from the WikiHow pages that some of its texts come from.
std::string withoutBrackets(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '[') {
      const std::size_t end = text.find_first_of("]\n", at + 1);
      if (end != std::string_view::npos && text[end] == ']') {
        at = end;
        continue;
      }
    }
    result += text[at];
  }
  return result;
}

std::string cleaned(std::string_view text) {
  return replaced(withoutBrackets(replaced(stripped(text), " [title]", ". ")), "  ", " ");
}

std::int64_t checkedAnswer(const Record& record, std::int64_t answer, std::size_t choices) {
  if (answer >= 0 && answer < static_cast<std::int64_t>(choices)) return answer;
  record.fail("the right answer is none of the " + std::to_string(choices) + " choices");
}

TaskItem hellaSwag(const Record& record) {
  TaskItem item;
  item.question =
      cleaned(record.text("activity_label") + ": " + record.text("ctx_a") + " " + capitalised(record.text("ctx_b")));
  for (const std::string& ending : record.texts("endings")) item.choices.push_back(cleaned(ending));
  item.answer = checkedAnswer(record, record.number("label"), item.choices.size());
  return item;
}

std::string questionAndAnswer(const std::string& question) { return "Question: " + question + "\nAnswer:"; }

// As the archive has it, and as it is on the hub of data sets.
TaskItem arc(const Record& record) {
  TaskItem item;
  std::vector<std::string> labels;
  if (record.at("question").is_object()) {
    const Record question = record.object("question");
    item.question = questionAndAnswer(question.text("stem"));
    for (const Record& choice : question.objects("choices")) {
      item.choices.push_back(choice.text("text"));
      labels.push_back(choice.text("label"));
    }
  } else {
    const Record choices = record.object("choices");
    item.question = questionAndAnswer(record.text("question"));
    item.choices = choices.texts("text");
    labels = choices.texts("label");
    if (labels.size() != item.choices.size()) record.fail("there are not as many labels as choices");
  }
  const auto right = std::ranges::find(labels, record.text("answerKey"));
  item.answer = checkedAnswer(record, right - labels.begin(), item.choices.size());
  return item;
}

TaskItem piqa(const Record& record) {
  TaskItem item{.question = questionAndAnswer(record.text("goal")),
                .choices = {record.text("sol1"), record.text("sol2")},
                .answer = 0,
                .target = {}};
  item.answer = checkedAnswer(record, record.number("label"), 2);
  return item;
}

TaskItem winoGrande(const Record& record) {
  const std::string sentence = record.text("sentence");
  const std::size_t blank = sentence.find('_');
  if (blank == std::string::npos) record.fail("the sentence has no blank (_)");
  TaskItem item;
  for (const char* option : {"option1", "option2"}) {
    item.choices.push_back(sentence.substr(0, blank) + record.text(option));
  }
  item.target = stripped(std::string_view(sentence).substr(blank + 1));
  item.answer = checkedAnswer(record, record.number("answer") - 1, 2);
  return item;
}

TaskItem lambada(const Record& record) {
  const std::string text = record.text("text");
  const std::size_t space = text.rfind(' ');
  if (space == std::string::npos) return {.question = {}, .choices = {}, .answer = 0, .target = " " + text};
  return {.question = text.substr(0, space), .choices = {}, .answer = 0, .target = text.substr(space)};
}

TaskItem gsm8k(const Record& record) {
  TaskItem item{.question = questionAndAnswer(record.text("question")),
                .choices = {},
                .answer = 0,
                .target = record.text("answer")};
  if (item.target.find("#### ") == std::string::npos) record.fail("the answer has no number after ####");
  return item;
}

std::vector<LineFormat> makeLineFormats() {
  std::vector<LineFormat> formats;
  const auto add = [&](std::vector<std::string> fields, const char* name, TaskItem (*item)(const Record&)) -> Task& {
    Task settings;
    settings.name = name;
    formats.push_back({.fields = std::move(fields), .settings = std::move(settings), .item = item});
    return formats.back().settings;
  };
  add({"ctx_a", "endings"}, "hellaswag", hellaSwag);
  add({"question", "answerKey"}, "arc", arc);
  add({"goal", "sol1", "sol2"}, "piqa", piqa);
  Task& fillIn = add({"sentence", "option1", "option2"}, "winogrande", winoGrande);
  fillIn.choicesAreQuestions = true;
  fillIn.normalisesLengths = false;
  Task& words = add({"question", "answer"}, "gsm8k", gsm8k);
  words.kind = TaskKind::generation;
  words.form = AnswerForm::gsm8k;
  words.stops = {"Question:", "</s>", "<|im_end|>"};
  add({"text"}, "lambada_openai", lambada).kind = TaskKind::cloze;
  return formats;
}

}  // namespace

const std::vector<LineFormat>& lineFormats() {
  static const std::vector<LineFormat> formats = makeLineFormats();
  return formats;
}

Task parseMmlu(std::string_view bytes, const std::filesystem::path& name) {
  std::string subject = name.stem().string();
  for (const std::string ending : {"_test", "_dev", "_val"}) {
    if (subject.ends_with(ending)) subject.resize(subject.size() - ending.size());
  }
  Task task;
  task.name = "mmlu_" + subject;
  task.group = "mmlu";
  task.normalisesLengths = false;
  std::ranges::replace(subject, '_', ' ');
  task.description = "The following are multiple choice questions (with answers) about " + subject + ".\n\n";
  for (const CsvRow& row : parseCsv(bytes, name.string())) {
    const std::string place = "'" + name.string() + "', line " + std::to_string(row.line) + ": ";
    if (row.fields.size() != 6) {
      throw base::Error(base::ErrorKind::badData, place + "there are " + std::to_string(row.fields.size()) +
                                                      " fields where a question, four choices and a letter belong");
    }
    TaskItem item{
        .question = std::string(stripped(row.fields[0])), .choices = {"A", "B", "C", "D"}, .answer = 0, .target = {}};
    for (std::size_t i = 0; i < 4; ++i) item.question += "\n" + item.choices[i] + ". " + row.fields[i + 1];
    item.question += "\nAnswer:";
    item.answer = std::ranges::find(item.choices, row.fields[5]) - item.choices.begin();
    if (item.answer == 4) {
      throw base::Error(base::ErrorKind::badData, place + "the answer is '" + row.fields[5] + "', not A, B, C or D");
    }
    task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace tandem::data::detail
