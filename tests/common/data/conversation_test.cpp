#include "common/data/conversation.h"

#include <gtest/gtest.h>

#include "tests/common/data/expect_error.h"

namespace tandem::data {
namespace {

using tokenizer::ChatMessage;
using tokenizer::ChatRole;
using Messages = std::vector<ChatMessage>;

const Messages twoPlusTwo = {{ChatRole::user, "2 + 2?"}, {ChatRole::assistant, "4"}};
const Messages withSystem = {{ChatRole::system, "Count."}, {ChatRole::user, "2 + 2?"}, {ChatRole::assistant, "4"}};

TEST(Conversation, isReadFromEveryCommonForm) {
  EXPECT_EQ(parseConversation(R"({"messages": [{"role": "user", "content": "2 + 2?"},
                                               {"role": "assistant", "content": "4", "weight": 1}], "id": 7})")
                .messages,
            twoPlusTwo);
  EXPECT_EQ(
      parseConversation(R"({"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]})")
          .messages,
      twoPlusTwo);
  EXPECT_EQ(parseConversation(R"({"prompt": "2 + 2?", "completion": "4"})").messages, twoPlusTwo);
  EXPECT_EQ(parseConversation(R"({"instruction": "2 + 2?", "output": "4"})").messages, twoPlusTwo);
  EXPECT_EQ(parseConversation(R"({"instruction": "2 + 2?", "input": "", "output": "4"})").messages, twoPlusTwo);
  EXPECT_EQ(parseConversation(R"({"instruction": "Add.", "input": "2 and 2", "output": "4"})").messages[0].content,
            "Add.\n\n2 and 2");
  EXPECT_EQ(parseConversation(R"({"text": "Once."})").text, "Once.");
  EXPECT_TRUE(parseConversation(R"({"text": "Once."})").messages.empty());
}

TEST(Conversation, mayHaveASystemsText) {
  EXPECT_EQ(parseConversation(R"({"system": "Count.", "prompt": "2 + 2?", "completion": "4"})").messages, withSystem);
  EXPECT_EQ(parseConversation(R"({"system": "Count.", "instruction": "2 + 2?", "output": "4"})").messages, withSystem);
  EXPECT_EQ(parseConversation(R"({"messages": [{"role": "system", "content": "Count."},
      {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]})")
                .messages,
            withSystem);
}

TEST(Conversation, whatIsWrongIsSaid) {
  const auto expectWrong = [](const char* line, const std::string& part) {
    expectError(base::ErrorKind::badData, {part}, [&] { parseConversation(line); });
  };
  expectWrong("{\"messages\": [", "no JSON: parse error");
  expectWrong("[1]", "no JSON object");
  expectWrong(R"({"question": "?"})", "none of \"messages\"");
  expectWrong(R"({"messages": "hi"})", "no list of turns");
  expectWrong(R"({"messages": []})", "empty list");
  expectWrong(R"({"messages": [3]})", "turn 1 is no JSON object");
  expectWrong(R"({"messages": [{"role": "user"}]})", "turn 1 has no \"content\"");
  expectWrong(R"({"messages": [{"role": "user", "content": ["parts"]}]})", "\"content\" that is no text");
  expectWrong(R"({"messages": [{"role": "tool", "content": ""}]})", "the role 'tool'");
  expectWrong(R"({"messages": [{"role": "user", "content": "hi"}]})", "no assistant's turn");
  expectWrong(R"({"messages": [{"role": "assistant", "content": "hi"}]})", "the user's is due");
  expectWrong(R"({"conversations": [{"from": "human", "value": "a"}, {"from": "human", "value": "b"}]})",
              "turn 2 is the user's");
  expectWrong(R"({"prompt": "2 + 2?"})", "no \"completion\"");
  expectWrong(R"({"instruction": "2 + 2?"})", "no \"output\"");
  expectWrong(R"({"text": ""})", "is empty");
  expectWrong((std::string(200, '[') + std::string(200, ']')).c_str(), "nested");
}

TEST(Preference, isTwoAnswersToOneConversation) {
  const Messages four = twoPlusTwo, five = {{ChatRole::user, "2 + 2?"}, {ChatRole::assistant, "5"}};
  for (const char* line :
       {R"({"prompt": "2 + 2?", "chosen": "4", "rejected": "5"})",
        R"({"prompt": [{"role": "user", "content": "2 + 2?"}], "chosen": [{"role": "assistant", "content": "4"}],
            "rejected": [{"role": "assistant", "content": "5"}]})",
        R"({"chosen": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
            "rejected": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}]})",
        // As data sets have it that repeat the question.
        R"({"prompt": "2 + 2?", "score": 3, "chosen": [{"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "4"}], "rejected": [{"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "5"}]})"}) {
    const Preference pair = parsePreference(line);
    EXPECT_EQ(pair.chosen, four) << line;
    EXPECT_EQ(pair.rejected, five) << line;
  }
  EXPECT_EQ(parsePreference(R"({"system": "Count.", "prompt": "2 + 2?", "chosen": "4", "rejected": "5"})").chosen,
            withSystem);
}

}  // namespace
}  // namespace tandem::data
