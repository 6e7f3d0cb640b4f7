#include "common/base/json_nesting.h"

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
