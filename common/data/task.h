#pragma once
// Tasks that a model is measured by: questions with a known answer.
//
// Read as they are published, and recognised by what is in them, or from a task file of one's own:
//
//   HellaSwag    .jsonl with ctx_a, ctx_b, endings, label, activity_label
//   ARC          .jsonl with question.stem, question.choices, answerKey (or choices.text, choices.label)
//   PIQA         .jsonl with goal, sol1, sol2; the labels in label, or a line each in NAME-labels.lst beside NAME.jsonl
//   WinoGrande   .jsonl with sentence, option1, option2, answer
//   LAMBADA      .jsonl with text, whose last word is asked for
//   GSM8K        .jsonl with question and an answer that ends in #### and a number
//   MMLU         SUBJECT_test.csv: question, four choices, letter
//   one's own    .json, as docs/formats.md describes
//
// How a record becomes a question (wording, cleaning of texts, what an answer is compared with) follows the task
// definitions of lm-evaluation-harness 0.4, so that numbers can be compared.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::data {

enum class TaskKind {
  multipleChoice,  // which of some texts is likeliest
  cloze,           // how likely the text that must come is, and whether it is the likeliest, token by token
  generation,      // whether the text that the model writes has the answer
};

struct TaskItem {
  std::string question;              // what stands before the answer
  std::vector<std::string> choices;  // of multiple choice; what fills the blank where Task::choicesAreQuestions
  std::int64_t answer = 0;           // the right one of them
  std::string target;                // else the answer; what stands behind the blank where Task::choicesAreQuestions
};

// How an answer that the model wrote is compared with the right one.
enum class AnswerForm {
  text,    // the texts without blanks round them
  number,  // the last number of each
  gsm8k,   // the number after ####, and apart from that the last number
};

struct Task {
  std::string name;
  std::string group;  // tasks of one group are also averaged together; empty: none
  TaskKind kind = TaskKind::multipleChoice;
  bool choicesAreQuestions = false;  // each choice is a beginning, and all end alike
  bool normalisesLengths = true;     // whether likelihoods by length of the choice are told too
  std::string description;           // stands before everything
  std::string delimiter = " ";       // between a question and its answer
  std::string exampleSeparator = "\n\n";
  std::vector<std::string> stops;  // of generation: texts that end an answer
  std::int64_t maxTokens = 256;    // of such an answer
  AnswerForm form = AnswerForm::text;
  bool ignoresCase = false;
  bool ignoresPunctuation = false;
  std::vector<TaskItem> items;
  std::string file;
};

// Throws Error of kind badData with the file, the line (or the number of the item) and the reason, of kind file when a
// file cannot be read. There is at least one item.
Task readTask(const std::filesystem::path& path);

// The same from bytes; `name` decides the format as a path does. Labels of PIQA are looked for beside it.
Task parseTask(std::string_view bytes, const std::filesystem::path& name);

}  // namespace tandem::data
