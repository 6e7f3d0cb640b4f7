#include "apps/shared/command_line.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "apps/shared/suggestion.h"
#include "common/base/error.h"
#include "tests/run_program.h"

namespace tandem::test {
namespace {

using app::ParsedCommandLine;

class CommandLine : public testing::Test {
 protected:
  ParsedCommandLine parse(const std::vector<std::string>& arguments) {
    return app::parseCommandLine(arguments, {.name = "pretrain", .purpose = "Trains.", .commands = {command}});
  }
  // The message of the usage error that the arguments lead to.
  std::string complaint(const std::vector<std::string>& arguments) {
    try {
      parse(arguments);
    } catch (const base::Error& error) {
      EXPECT_EQ(error.kind(), base::ErrorKind::usage);
      return error.message();
    }
    ADD_FAILURE() << "the command line was accepted";
    return "";
  }
  std::string configFile(const std::string& content) {
    const std::string path = (folder.path() / "run.toml").string();
    std::ofstream(path) << content;
    return path;
  }

  std::int64_t steps = 100;
  double rate = 0.5;
  std::vector<std::string> data;
  std::uint64_t seed = 1;
  int microBatch = 0;
  std::string model;
  bool fast = false;
  app::Command command = {.declare = [this](CLI::App& options) {
    options.add_option("--steps", steps, "Steps to train")->type_name("STEPS");
    options.add_option("--rate", rate, "Learning rate");
    options.add_option("--data", data, "Datasets")->required()->type_name("FILE[:WEIGHT]");
    options.add_option("--seed", seed, "Of the weights");
    options.add_option("--micro-batch", microBatch, "Rows");
    options.add_option("--model", model, "Configuration")->check(CLI::ExistingFile)->type_name("FILE");
    options.add_flag("--fast", fast, "Hurry");
  }};
  TemporaryFolder folder;
};

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << text

TEST_F(CommandLine, fillsTheVariablesOfTheApp) {
  const ParsedCommandLine parsed = parse({"--steps", "7", "--data", "a", "b", "--rate=0.25", "--fast", "--data", "c"});
  EXPECT_EQ(steps, 7);
  EXPECT_EQ(rate, 0.25);
  EXPECT_TRUE(fast);
  EXPECT_EQ(data, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_FALSE(parsed.answer);
  EXPECT_EQ(parsed.common.device, app::Device::automatic);
  EXPECT_EQ(parsed.common.logLevel, base::LogLevel::info);
  EXPECT_FALSE(parsed.common.json);
}

TEST_F(CommandLine, hasTheCommonOptionsInEveryProgram) {
  const ParsedCommandLine parsed =
      parse({"--data", "a", "--device", "cpu", "--threads", "3", "--log-level", "debug", "--json"});
  EXPECT_EQ(parsed.common.device, app::Device::cpu);
  EXPECT_EQ(parsed.common.threads, 3);
  EXPECT_TRUE(parsed.threadsGiven);
  EXPECT_EQ(parsed.common.logLevel, base::LogLevel::debug);
  EXPECT_TRUE(parsed.common.json);
}

TEST_F(CommandLine, keepsEveryOptionAsUsedForTheRunsRecord) {
  const auto used = parse({"--data", "a", "b", "--steps", "9"}).common.used;
  EXPECT_EQ(used.at("steps"), "9");
  EXPECT_EQ(used.at("rate"), "0.5");
  EXPECT_EQ(used.at("data"), "a b");
  EXPECT_EQ(used.at("fast"), "false");
  EXPECT_EQ(used.at("device"), "auto");
  EXPECT_EQ(used.count("help"), 0u);
}

TEST_F(CommandLine, refusesAnUnknownFlagAndNamesTheNearest) {
  const std::string text = complaint({"--data", "a", "--stpes", "7"});
  EXPECT_CONTAINS(text, "unknown flag '--stpes'");
  EXPECT_CONTAINS(text, "did you mean '--steps'?");
  EXPECT_CONTAINS(complaint({"--stpes=7"}), "unknown flag '--stpes'");  // though --data is missing too
  const std::string far = complaint({"--data", "a", "--quantum-annealing"});
  EXPECT_CONTAINS(far, "unknown flag '--quantum-annealing'");
  EXPECT_EQ(far.find("did you mean"), std::string::npos);
}

TEST_F(CommandLine, refusesAFlagGivenTwice) {
  EXPECT_CONTAINS(complaint({"--data", "a", "--steps", "1", "--steps", "2"}), "--steps is given twice");
  EXPECT_CONTAINS(complaint({"--data", "a", "--fast", "--fast"}), "--fast is given twice");
}

TEST_F(CommandLine, refusesWhatIsMissingOrMalformed) {
  EXPECT_CONTAINS(complaint({}), "--data is required");
  EXPECT_CONTAINS(complaint({"--data", "a", "--steps", "many"}), "--steps");
  EXPECT_CONTAINS(complaint({"--data", "a", "--steps"}), "--steps");
  EXPECT_CONTAINS(complaint({"--data", "a", "--steps", "1.5"}), "--steps");
  EXPECT_CONTAINS(complaint({"--data", "a", "--device", "tpu"}), "--device");
  EXPECT_CONTAINS(complaint({"--data", "a", "--threads", "0"}), "--threads");
  EXPECT_CONTAINS(complaint({"--data", "a", "--log-level", "loud"}), "--log-level");
  EXPECT_CONTAINS(complaint({"--steps", "1", "stray", "--data", "a"}), "unexpected argument 'stray'");
}

TEST_F(CommandLine, textInBracketsIsOneValue) {
  const std::vector<std::string> texts = {"[INST] Hi, you [/INST]", "[]", "[a,b]"};
  const auto used = parse({"--data", texts[0], texts[1], "--data=" + texts[2]}).common.used;
  EXPECT_EQ(data, texts);
  EXPECT_EQ(used.at("data"), "[INST] Hi, you [/INST] [] [a,b]");
  parse({"--config", configFile("data = [\"[INST] Hi, you [/INST]\", \"[]\", '[a,b]']\n")});
  EXPECT_EQ(data, texts);
  EXPECT_CONTAINS(complaint({"--data", "a", "--model", "[x]"}), "--model is '[x]'; that does not exist");
}

TEST_F(CommandLine, takesEveryNumberThatFits) {
  parse({"--data", "a", "--steps", "9223372036854775807", "--seed", "18446744073709551615", "--rate", "12345678901",
         "--model", "/dev/null"});
  EXPECT_EQ(steps, INT64_MAX);
  EXPECT_EQ(seed, UINT64_MAX);
  EXPECT_EQ(rate, 12345678901.0);
  parse({"--data", "a", "--steps", "-3", "--rate", "0"});
  EXPECT_EQ(steps, -3);
  EXPECT_EQ(rate, 0);
}

TEST_F(CommandLine, saysOfAValueThatDoesNotFitWhatIsExpected) {
  for (const auto& [flag, value, expectation] : std::vector<std::array<std::string, 3>>{
           {"--steps", "1e6", "a whole number is expected"},
           {"--steps", "many", "a whole number is expected"},
           {"--steps", "99999999999999999999", "that is beyond the numbers it can hold"},
           {"--steps", "010", "numbers are written without zeros in front"},
           {"--seed", "-5", "a whole number from 0 up is expected"},
           {"--micro-batch", "4294967297", "that is beyond the numbers it can hold"},
           {"--rate", "fast", "a number is expected"},
           {"--device", "tpu", "auto, cpu or cuda is expected"},
           {"--threads", "0", "a whole number from 1 to 4096 is expected"},
           {"--log-level", "loud", "debug, info, warning or error is expected"},
           {"--model", "/none.json", "that does not exist"},
           {"--model", "/", "that is a folder, and a file is expected"}}) {
    const std::string expected = flag + " is '" + value + "'; " + expectation + " (";
    EXPECT_CONTAINS(complaint({"--data", "a", flag, value}), expected);
    if (flag != "--threads") {
      EXPECT_CONTAINS(complaint({"--data", "a", "--config", configFile(flag.substr(2) + " = \"" + value + "\"\n")}),
                      expected);
    }
  }
  EXPECT_CONTAINS(complaint({"--data", "a", "--fast=perhaps"}), "--fast is 'perhaps'; true or false is expected");
  EXPECT_CONTAINS(complaint({"--data", "a", "--steps"}), "--steps is given without a value; it takes STEPS");
  EXPECT_CONTAINS(complaint({"--data"}), "--data is given without a value; it takes FILE[:WEIGHT]");
}

TEST_F(CommandLine, refusesADeviceThatThisBuildHasNot) {
  EXPECT_CONTAINS(complaint({"--data", "a", "--device", "cuda"}), "no CUDA");
}

TEST_F(CommandLine, theConfigurationFileHasTheSameNamesAndTheCommandLineWins) {
  const std::string file =
      configFile("# a run\nsteps = 7\nrate = 0.125\nfast = true\ndata = [\"a\", \"b\"]\nlog-level = \"error\"\n");
  const ParsedCommandLine parsed = parse({"--config", file, "--steps", "9"});
  EXPECT_EQ(steps, 9);
  EXPECT_EQ(rate, 0.125);
  EXPECT_TRUE(fast);
  EXPECT_EQ(data, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parsed.common.logLevel, base::LogLevel::error);
}

TEST_F(CommandLine, refusesAConfigurationFileThatItCannotObey) {
  const std::string unknown = complaint({"--data", "a", "--config", configFile("rate = 1\nstpes = 7\n")});
  EXPECT_CONTAINS(unknown, "line 2: unknown name 'stpes'");
  EXPECT_CONTAINS(unknown, "did you mean '--steps'?");
  EXPECT_CONTAINS(complaint({"--config", configFile("steps = many\n"), "--data", "a"}), "--steps is 'many'");
  EXPECT_CONTAINS(complaint({"--data", "a", "--config", "/none.toml"}), "'/none.toml' does not exist");
  EXPECT_CONTAINS(complaint({"--data", "a", "--config", "/"}), "'/' is a folder");
  EXPECT_CONTAINS(complaint({"--data", "a", "--config", configFile("config = \"other.toml\"\n")}),
                  "line 1: 'config' is for the command line only");
  EXPECT_CONTAINS(complaint({"--data", "a", "--config", configFile("steps = 1\nrate = 2\nsteps = 3\n")}),
                  "line 3: 'steps' is set a second time, after line 1");
  EXPECT_CONTAINS(complaint({"--data", "a", "--config", configFile("steps = [1, 2]\n")}), "--steps is given twice");
}

TEST_F(CommandLine, aMisspeltNameOfTheFileIsReportedBeforeWhatItExplains) {
  EXPECT_CONTAINS(complaint({"--config", configFile("dta = \"a\"\n")}), "did you mean '--data'?");  // and --data misses
  EXPECT_CONTAINS(complaint({"--config", configFile("stpes = 7\nrate = high\n")}), "did you mean '--steps'?");
}

TEST_F(CommandLine, aFileWithASectionIsRefused) {
  EXPECT_CONTAINS(complaint({"--data", "a", "--config", configFile("[pretrain]\nsteps = 7\n")}), "line 1: a section");
  EXPECT_CONTAINS(complaint({"--data", "a", "--config", configFile("pretrain.steps = 7\n")}), "dotted name");
}

TEST_F(CommandLine, helpGivesTypeUnitAndDefault) {
  const ParsedCommandLine parsed = parse({"--help"});
  ASSERT_TRUE(parsed.answer);
  EXPECT_CONTAINS(*parsed.answer, "Trains.");
  EXPECT_CONTAINS(*parsed.answer, "--steps STEPS (default 100)");
  EXPECT_CONTAINS(*parsed.answer, "--rate NUMBER (default 0.5)");
  EXPECT_CONTAINS(*parsed.answer, "--data FILE[:WEIGHT]... (required)");
  EXPECT_CONTAINS(*parsed.answer, "--device auto|cpu|cuda (default auto)");
  EXPECT_CONTAINS(*parsed.answer, "--threads INTEGER");
}

TEST_F(CommandLine, versionNamesTheLibraries) {
  const ParsedCommandLine parsed = parse({"--version"});
  ASSERT_TRUE(parsed.answer);
  for (const char* part : {"pretrain 0.", "build", "MPI", "HDF5"}) EXPECT_CONTAINS(*parsed.answer, part);
}

TEST(Commands, areChosenByTheFirstArgument) {
  int size = 1;
  const app::Program program = {
      .name = "tokenize",
      .purpose = "Text to tokens.",
      .commands = {{.name = "train",
                    .purpose = "Trains a tokenizer.",
                    .declare = [&](CLI::App& options) { options.add_option("--size", size); }},
                   {.name = "encode", .purpose = "Encodes text."}}};
  EXPECT_EQ(app::parseCommandLine({"train", "--size", "5"}, program).command->name, "train");
  EXPECT_EQ(size, 5);
  EXPECT_EQ(app::parseCommandLine({"encode"}, program).command->name, "encode");
  EXPECT_CONTAINS(*app::parseCommandLine({"--help"}, program).answer, "train    Trains a tokenizer.");
  EXPECT_CONTAINS(*app::parseCommandLine({"train", "--help"}, program).answer, "Usage: tokenize train");
  for (const auto& [arguments, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "a command is missing: train, encode"},
           {{"trian"}, "did you mean 'train'?"},
           {{"--size", "5"}, "the command comes first"},
           {{"encode", "--size", "5"}, "unknown flag '--size'"}}) {
    try {
      app::parseCommandLine(arguments, program);
      ADD_FAILURE() << message;
    } catch (const base::Error& error) {
      EXPECT_EQ(error.kind(), base::ErrorKind::usage);
      EXPECT_CONTAINS(error.message(), message);
    }
  }
}

TEST(Suggestion, isTheNearestNameOrNone) {
  const std::vector<std::string> names = {"--steps", "--batch-tokens", "--seed"};
  EXPECT_EQ(app::nearestName("--step", names), "--steps");
  EXPECT_EQ(app::nearestName("--batch-token-s", names), "--batch-tokens");
  EXPECT_EQ(app::nearestName("--sede", names), "--seed");
  EXPECT_EQ(app::nearestName("--warmup", names), std::nullopt);
  EXPECT_EQ(app::nearestName("", names), std::nullopt);
  EXPECT_EQ(app::nearestName(std::string(100000, 'x'), names), std::nullopt);
}

}  // namespace
}  // namespace tandem::test
