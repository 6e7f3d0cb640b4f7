#include "common/base/config_text.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace tandem::base {
namespace {

using Values = std::vector<std::string>;

Values valuesOf(const std::string& text) {
  const std::vector<ConfigEntry> entries = parseConfigText(text, "run.toml");
  EXPECT_EQ(entries.size(), 1u) << text;
  return entries.empty() ? Values{} : entries.front().values;
}

TEST(ConfigFile, hasNamesNumbersWordsAndQuotedTexts) {
  const std::vector<ConfigEntry> entries = parseConfigText(
      "\xef\xbb\xbf# of the run\r\nsteps = 7\r\n\n  rate=1.5e-3 # high\nlog-level = error\nb = true\n\"fast\" = 'no'",
      "run.toml");
  ASSERT_EQ(entries.size(), 5u);
  EXPECT_EQ(entries[0].name, "steps");
  EXPECT_EQ(entries[0].values, Values{"7"});
  EXPECT_EQ(entries[0].line, 2);
  EXPECT_EQ(entries[1].values, Values{"1.5e-3"});
  EXPECT_EQ(entries[2].name, "log-level");
  EXPECT_EQ(entries[3].line, 6);
  EXPECT_EQ(entries[4].name, "fast");
}

TEST(ConfigFile, takesQuotedTextsAsTheyAre) {
  EXPECT_EQ(valuesOf("output = \"runs/a#1, [b] = c\" # one"), Values{"runs/a#1, [b] = c"});
  EXPECT_EQ(valuesOf("a = \"\\n\\t\\r\\\"\\\\\""), Values{"\n\t\r\"\\"});
  EXPECT_EQ(valuesOf("a = '\\n\"'"), Values{"\\n\""});
  EXPECT_EQ(valuesOf("a = ''"), Values{""});
  EXPECT_EQ(valuesOf("a = x"), Values{"x"});  // as short as a line can be
}

TEST(ConfigFile, takesNumbersInGroups) {
  EXPECT_EQ(valuesOf("tokens = 1_000_000"), Values{"1000000"});
  EXPECT_EQ(valuesOf("output = run_1"), Values{"run_1"});
}

TEST(ConfigFile, takesListsOverSeveralLines) {
  EXPECT_EQ(valuesOf("data = [\"a\", 'b', c]"), (Values{"a", "b", "c"}));
  EXPECT_EQ(valuesOf("data = [ # two\n  \"a]\", # the first\n\n  \"b\",\n]\n"), (Values{"a]", "b"}));
  EXPECT_EQ(valuesOf("data = []"), Values{});
}

TEST(ConfigFile, isRefusedWithTheLineOfWhatItCannotMean) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"a = 1\n[b]\n", "line 2: a section"},
           {"a.b = 1", "line 1: 'a.' begins a dotted name"},
           {"\nab\n", "line 2: 'ab' is not followed by '= value'"},
           {"= 1", "line 1: here a line 'name = value' is expected"},
           {"a =\nb = 1", "line 1: a value is missing"},
           {"a = 1 2", "line 1: there is more behind the value of 'a'"},
           {"a = \"x\" y", "line 1: there is more"},
           {"a = \"x\nb = 1", "line 1: the quote \" is not closed"},
           {"a = 'x", "line 1: the quote ' is not closed"},
           {"a = \"\\q\"", "line 1: a backslash"},
           {"a = \"\\", "line 1: a backslash"},
           {"a = [1,\n2", "line 1: the list has no ']'"},
           {"a = [1\n2]", "line 2: after a value of a list"},
           {"a = [[1]]", "line 1: a value is missing"},
           {"a = 1\nb = 2\na = 3", "line 3: 'a' is set a second time, after line 1"}}) {
    try {
      parseConfigText(text, "run.toml");
      ADD_FAILURE() << text;
    } catch (const base::Error& error) {
      EXPECT_EQ(error.kind(), base::ErrorKind::usage);
      EXPECT_NE(error.message().find("the configuration file 'run.toml', " + message), std::string::npos)
          << text << ": " << error.message();
    }
  }
}

}  // namespace
}  // namespace tandem::base
