#include "common/base/json.h"

#include <gtest/gtest.h>

namespace tandem::base {
namespace {

bool isRefused(const std::string& json) {
  try {
    refuseDeepNesting(json, ErrorKind::badData, "x.json");
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::badData);
    EXPECT_EQ(error.message().find("x.json: "), 0u) << error.message();
    return true;
  }
}

TEST(Json, isReadInTheOrderAskedFor) {
  EXPECT_EQ(jsonText(parseJson(R"({"b": 1, "a": [true, null]})")), R"({"a":[true,null],"b":1})");
  EXPECT_EQ(jsonText(parseOrderedJson(R"({"b": 1, "a": [true, null]})")), R"({"b":1,"a":[true,null]})");
  EXPECT_EQ(jsonText(parseOrderedJsonOrDiscard(R"({"b": 1, "a": 2})"), 1), "{\n \"b\": 1,\n \"a\": 2\n}");
}

TEST(Json, thatIsNoneIsDiscardedOrNamed) {
  EXPECT_TRUE(parseJsonOrDiscard("[1,").is_discarded());
  EXPECT_TRUE(parseOrderedJsonOrDiscard("[1,").is_discarded());
  EXPECT_THROW(static_cast<void>(parseOrderedJson("[1,")), nlohmann::json::parse_error);
  try {
    static_cast<void>(parseJson("[1,"));
    FAIL() << "half an array was read";
  } catch (const nlohmann::json::parse_error& error) {
    EXPECT_EQ(jsonProblem(error).find("parse error at line 1, column 4: "), 0u) << jsonProblem(error);
  }
}

TEST(Json, replacesBytesThatAreNoText) {
  const nlohmann::json cut = "caf\xC3";
  EXPECT_THROW(static_cast<void>(jsonText(cut)), nlohmann::json::type_error);
  EXPECT_EQ(lenientJsonText(cut), "\"caf\xEF\xBF\xBD\"");
  EXPECT_EQ(lenientJsonText(nlohmann::ordered_json("caf\xC3")), "\"caf\xEF\xBF\xBD\"");
}

TEST(JsonNesting, isRefusedBeyondAHundred) {
  EXPECT_FALSE(isRefused(std::string(100, '[') + std::string(100, ']')));
  EXPECT_TRUE(isRefused(std::string(101, '[')));
  std::string objects;
  for (int i = 0; i < 101; ++i) objects += "{\"a\":";
  EXPECT_TRUE(isRefused(objects));
}

TEST(JsonNesting, countsWhatIsOpenAndNotWhatStandsInTexts) {
  std::string wide = "[";
  for (int i = 0; i < 1000; ++i) wide += "[],{},";
  EXPECT_FALSE(isRefused(wide));
  EXPECT_FALSE(isRefused("[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\\\\\"]"));
  EXPECT_TRUE(isRefused("\"\\\\\"" + std::string(101, '[')));
}

}  // namespace
}  // namespace tandem::base
