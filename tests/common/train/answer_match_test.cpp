#include "common/train/answer_match.h"

#include <gtest/gtest.h>

namespace tandem::train {
namespace {

using data::AnswerForm;
using data::Task;

Task taskOf(AnswerForm form) {
  Task task;
  task.form = form;
  return task;
}

struct Gsm8kCase {
  const char* text;
  const char* strict;
  const char* flexible;
  bool strictRight;
  bool flexibleRight;
};

TEST(AnswerMatch, gsm8kFindsWhatTheHarnesssPatternsFind) {
  const std::string target = "They cost 1200 + 34.\n#### 1,234";
  for (const Gsm8kCase& one : {
           Gsm8kCase{"So\n#### 1,234\n", "1,234", "1,234", true, true},
           Gsm8kCase{"#### $1234", "[invalid]", "$1234", false, true},
           Gsm8kCase{"#### x #### -5 or 1234.", "-5", "1234.", false, true},
           Gsm8kCase{"It is 1234, not 7", "[invalid]", "7", false, false},
           Gsm8kCase{"-1234", "[invalid]", "-1234", false, false},
           Gsm8kCase{"a-b. c $ -3", "[invalid]", "-3", false, false},
           Gsm8kCase{"", "[invalid]", "[invalid]", false, false},
       }) {
    const auto matched = matchAnswer(taskOf(AnswerForm::gsm8k), one.text, target);
    ASSERT_EQ(matched.size(), 2U);
    EXPECT_EQ(matched[0].filter, "strict-match");
    EXPECT_EQ(matched[0].answer, one.strict) << one.text;
    EXPECT_EQ(matched[0].isRight, one.strictRight) << one.text;
    EXPECT_EQ(matched[1].filter, "flexible-extract");
    EXPECT_EQ(matched[1].answer, one.flexible) << one.text;
    EXPECT_EQ(matched[1].isRight, one.flexibleRight) << one.text;
  }
}

TEST(AnswerMatch, numbersAreComparedWithoutTheirDecoration) {
  const Task task = taskOf(AnswerForm::number);
  EXPECT_TRUE(matchAnswer(task, "3 plus 4 is 7.", "7")[0].isRight);
  EXPECT_TRUE(matchAnswer(task, "about $1,000.", "1000")[0].isRight);
  EXPECT_FALSE(matchAnswer(task, "7 is 3 plus 4", "7")[0].isRight);
  EXPECT_FALSE(matchAnswer(task, "none", "7")[0].isRight);
}

TEST(AnswerMatch, textsAreComparedWithoutBlanksRoundThem) {
  Task task = taskOf(AnswerForm::text);
  EXPECT_TRUE(matchAnswer(task, " Tandem.\n", "Tandem.")[0].isRight);
  EXPECT_FALSE(matchAnswer(task, "tandem.", "Tandem.")[0].isRight);
  task.ignoresCase = true;
  EXPECT_TRUE(matchAnswer(task, "tandem.", "Tandem.")[0].isRight);
  EXPECT_FALSE(matchAnswer(task, "tandem", "Tandem.")[0].isRight);
  task.ignoresPunctuation = true;
  EXPECT_TRUE(matchAnswer(task, "tandem", "Tandem.")[0].isRight);
}

}  // namespace
}  // namespace tandem::train
