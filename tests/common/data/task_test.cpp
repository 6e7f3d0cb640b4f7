#include "common/data/task.h"

#include <gtest/gtest.h>

#include <fstream>

#include "common/data/detail/csv.h"
#include "common/data/python_text.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::data {
namespace {

using Texts = std::vector<std::string>;

const std::string hellaSwag =
    R"({"activity_label": "Baking", "ctx_a": " A [title] B", "ctx_b": "the  Man [x] \u00c9", "endings": ["a [1] b", "c"],)";

TEST(Tasks, hellaSwagIsCleanedAsTheHarnessDoes) {
  const Task task = parseTask(hellaSwag + R"( "label": "1"})", "val.jsonl");
  EXPECT_EQ(task.name, "hellaswag");
  EXPECT_EQ(task.kind, TaskKind::multipleChoice);
  EXPECT_TRUE(task.normalisesLengths);
  EXPECT_EQ(task.items[0].question, "Baking: A. B The man \xc3\xa9") << "one pass over doubled blanks";
  EXPECT_EQ(task.items[0].choices, (Texts{"a b", "c"}));
  EXPECT_EQ(task.items[0].answer, 1);
}

TEST(Tasks, arcIsReadFromTheArchiveAndTheHub) {
  const Task archive = parseTask(
      R"({"question": {"stem": "Why?", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]},)"
      R"( "answerKey": "2"})",
      "ARC-Challenge-Dev.jsonl");
  const Task hub = parseTask(
      R"({"question": "Why?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"})", "easy.jsonl");
  EXPECT_EQ(archive.name, "arc_challenge");
  EXPECT_EQ(hub.name, "arc_easy");
  for (const Task* task : {&archive, &hub}) {
    EXPECT_EQ(task->items[0].question, "Question: Why?\nAnswer:");
    EXPECT_EQ(task->items[0].choices, (Texts{"x", "y"}));
    EXPECT_EQ(task->items[0].answer, 1);
  }
}

TEST(Tasks, labelsOfPiqaStandBesideItsFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "valid.jsonl";
  std::ofstream(path) << R"({"goal": "g", "sol1": "x", "sol2": "y"})"
                      << "\n\n"
                      << R"({"goal": "h", "sol1": "x", "sol2": "y"})"
                      << "\n";
  std::ofstream(folder.path() / "valid-labels.lst") << "1\n0\n";
  const Task task = readTask(path);
  EXPECT_EQ(task.name, "piqa");
  EXPECT_EQ(task.items[0].answer, 1);
  EXPECT_EQ(task.items[1].answer, 0);
  EXPECT_EQ(task.items[1].question, "Question: h\nAnswer:");
  std::ofstream(folder.path() / "valid-labels.lst") << "1\n";
  expectError(base::ErrorKind::badData, {"valid.jsonl', line 3", "valid-labels.lst", "no line 2"},
              [&] { readTask(path); });
}

TEST(Tasks, winoGrandesChoicesAreBeginnings) {
  const Task task = parseTask(
      R"({"sentence": "The cat saw the dog, so _ ran away. ", "option1": "the cat", "option2": "it", "answer": "2"})",
      "dev.jsonl");
  EXPECT_TRUE(task.choicesAreQuestions);
  EXPECT_EQ(task.items[0].choices, (Texts{"The cat saw the dog, so the cat", "The cat saw the dog, so it"}));
  EXPECT_EQ(task.items[0].target, "ran away.");
  EXPECT_EQ(task.items[0].answer, 1);
}

TEST(Tasks, lambadaAsksForTheLastWord) {
  const Task task = parseTask("{\"text\": \"one two  three\"}\r\n{\"text\": \"alone\"}\n", "lambada_test.jsonl");
  EXPECT_EQ(task.kind, TaskKind::cloze);
  EXPECT_EQ(task.items[0].question, "one two ");
  EXPECT_EQ(task.items[0].target, " three");
  EXPECT_EQ(task.items[1].question, "");
  EXPECT_EQ(task.items[1].target, " alone");
}

TEST(Tasks, gsm8kIsWritten) {
  const Task task = parseTask(R"({"question": "1 + 1?", "answer": "It is two.\n#### 2"})", "test.jsonl");
  EXPECT_EQ(task.kind, TaskKind::generation);
  EXPECT_EQ(task.form, AnswerForm::gsm8k);
  EXPECT_EQ(task.items[0].question, "Question: 1 + 1?\nAnswer:");
  EXPECT_EQ(task.stops[0], "Question:");
}

TEST(Tasks, mmluHasItsSubjectAndItsLetters) {
  const Task task = parseTask("\" Say \"\"one\"\",\nplease \",1,2,\"3,5\",4,C\r\n", "high_school_biology_test.csv");
  EXPECT_EQ(task.name, "mmlu_high_school_biology");
  EXPECT_EQ(task.group, "mmlu");
  EXPECT_EQ(task.description,
            "The following are multiple choice questions (with answers) about high school biology.\n\n");
  EXPECT_EQ(task.items[0].question, "Say \"one\",\nplease\nA. 1\nB. 2\nC. 3,5\nD. 4\nAnswer:");
  EXPECT_EQ(task.items[0].answer, 2);
}

TEST(Tasks, onesOwnHaveChoicesOrAnAnswer) {
  const Task choices = parseTask(R"({"task": "t", "kind": "multiple_choice", "description": "Sums.\n",
      "prompt": "Q: {question} ({hint})\nA:", "items": [
        {"question": "2 + 2?", "hint": "even", "choices": ["3", "4"], "answer": 1},
        {"question": "1 + 2?", "hint": "odd", "choices": ["3", "4"], "answer": "3"}]})",
                                 "own.json");
  EXPECT_EQ(choices.items[0].question, "Q: 2 + 2? (even)\nA:");
  EXPECT_EQ(choices.items[0].answer, 1);
  EXPECT_EQ(choices.items[1].answer, 0);
  EXPECT_EQ(choices.description, "Sums.\n");
  const Task cloze = parseTask(
      R"({"task": "t", "kind": "cloze", "target_delimiter": "_", "items": [{"question": "a", "answer": "b"}]})",
      "own.json");
  EXPECT_EQ(cloze.items[0].target, "_b") << "the delimiter must come too";
  EXPECT_EQ(cloze.delimiter, "");
}

TEST(Tasks, itemsOfOnesOwnMayStandInAFileOfLines) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "items.jsonl") << "{\"question\": \"a\", \"answer\": \"b\"}\n{\"question\": \"c\"}\n";
  std::ofstream(folder.path() / "own.json")
      << R"({"task": "t", "kind": "generation", "items": "items.jsonl", "until": ["\n"], "max_tokens": 9})";
  expectError(base::ErrorKind::badData, {"items.jsonl', line 2: there is no \"answer\""},
              [&] { readTask(folder.path() / "own.json"); });
}

TEST(Tasks, whatIsWrongIsSaidWithItsPlace) {
  const auto expectWrong = [](const std::string& text, const char* name, std::initializer_list<std::string> words) {
    expectError(base::ErrorKind::badData, words, [&] { parseTask(text, name); });
  };
  expectWrong("", "x.jsonl", {"'x.jsonl' has no item"});
  expectWrong("{\"text\": \"a b\"}\n{\"text\": ", "x.jsonl", {"line 2", "no JSON"});
  expectWrong("{\"text\": \"a b\"}\n[]", "x.jsonl", {"line 2", "no JSON object"});
  expectWrong("{\"text\": \"a b\"}\n{\"text\": 3}", "x.jsonl", {"line 2", "\"text\" is no text"});
  expectWrong("{\"words\": 1}", "x.jsonl", {"line 1", "no task that is known"});
  expectWrong(hellaSwag + " \"label\": 2}", "x.jsonl", {"line 1", "none of the 2 choices"});
  expectWrong(hellaSwag + " \"label\": \"\"}", "x.jsonl", {"line 1", "\"label\" is no whole number"});
  expectWrong(R"({"sentence": "no blank", "option1": "", "option2": "", "answer": "1"})", "x.jsonl", {"no blank"});
  expectWrong(R"({"question": "q", "answer": "7"})", "x.jsonl", {"####"});
  expectWrong(R"({"question": "q", "choices": {"text": ["a"], "label": []}, "answerKey": "A"})", "x.jsonl", {"labels"});
  expectWrong(std::string(200, '[') + std::string(200, ']'), "x.jsonl", {"line 1", "nested"});
  expectWrong("q,1,2,3,4,A\nq,1,2,3,4\n", "x.csv", {"'x.csv', line 2", "5 fields"});
  expectWrong("q,1,2,3,4,E\n", "x.csv", {"line 1", "'E'"});
  expectWrong("\"q\n,1,2,3,4,A\n", "x.csv", {"line 1", "not closed"});
  expectWrong("a,\"b\nc\"d,\n", "x.csv", {"line 2", "behind a closing quote"});
  const auto own = [](const std::string& fields) { return R"({"task": "t", "kind": "generation", )" + fields + "}"; };
  expectWrong(own(R"("itms": [])"), "x.json", {"\"itms\" is unknown"});
  expectWrong(own(R"("items": [])"), "x.json", {"has no item"});
  expectWrong(own(R"("items": "nowhere/x.jsonl")"), "x.json", {"'nowhere/x.jsonl', no file"});
  expectWrong(own(R"("items": [{"question": "q", "answer": " "}])"), "x.json", {"\"items\" 1", "is empty"});
  expectWrong(own(R"("items": [{"answer": "a"}], "prompt": "{question")"), "x.json", {"without }"});
  expectWrong(own(R"("items": [{"answer": "a"}], "prompt": "{question}")"), "x.json", {"no \"question\""});
  expectWrong(own(R"("items": [], "until": [""])"), "x.json", {"\"until\" is empty"});
  expectWrong(own(R"("items": [], "max_tokens": 0)"), "x.json", {"at least 1"});
  expectWrong(R"({"task": "t", "kind": "choice", "items": []})", "x.json", {"'choice'"});
  expectWrong(R"({"task": "t", "kind": "cloze", "match": "number", "items": []})", "x.json", {"kind generation"});
  expectWrong(R"({"task": "t", "kind": "multiple_choice",
      "items": [{"question": "q", "choices": ["a", "b"], "answer": 2}]})",
              "x.json", {"\"items\" 1", "none of the choices"});
  expectError(base::ErrorKind::usage, {"'x.txt' is no task"}, [] { parseTask("", "x.txt"); });
}

TEST(Csv, keepsWhatQuotesHold) {
  const auto rows = detail::parseCsv("a,\"b\n\"\"c\"\"\",\n\n,x", "x.csv");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].fields, (Texts{"a", "b\n\"c\"", ""}));
  EXPECT_EQ(rows[1].fields, (Texts{"", "x"}));
  EXPECT_EQ(rows[1].line, 4);
}

TEST(PythonText, isChangedAsPythonDoes) {
  EXPECT_EQ(stripped("\xc2\xa0\t a \xe3\x80\x80\n"), "a");
  EXPECT_EQ(rightStripped(" a \x1c"), " a");
  EXPECT_EQ(stripped("\xe3\x80"), "\xe3\x80") << "what is no character is no white space";
  EXPECT_EQ(capitalised("\xc3\xa9LAN \xc3\x89T"), "\xc3\x89lan \xc3\xa9t");
  EXPECT_EQ(capitalised(""), "");
  EXPECT_EQ(replaced("a    b", "  ", " "), "a  b");
  EXPECT_EQ(countCharacters("\xc3\xa9\xe3\x80\x80x"), 3);
}

}  // namespace
}  // namespace tandem::data
