#include "apps/shared/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "apps/shared/device.h"
#include "apps/shared/suggestion.h"
#include "apps/shared/version.h"
#include "common/base/config_text.h"
#include "common/base/error.h"
#include "kernels/backend.h"

namespace tandem::app {
namespace {

[[noreturn]] void usageError(const std::string& message, const std::string& helpOf) {
  throw base::Error(base::ErrorKind::usage, message + " ('" + helpOf + " --help' lists what there is)");
}

// CLI11 joins the type and what the validators say by colons: "TEXT:FILE", "NAME:{auto,cpu}", "INT:INT in [1 - 9]". A
// colon in brackets belongs to the type: "FILE[:WEIGHT]".
struct TypeText {
  std::string type;
  std::string validator;
};
TypeText split(const std::string& text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
    if (text[i] == ':' && depth == 0) return {text.substr(0, i), text.substr(i + 1)};
  }
  return {text, ""};
}

// CLI11 takes "[a, b]" given to a list for two values, "[INST] Hi [/INST]" as well. A mark behind the bracket hides it
// from that; the options take the mark off again.
constexpr char endOfBrackets = '\x01';

std::string markBrackets(const std::string& argument) {
  const std::size_t equals = argument.starts_with("--") ? argument.find('=') : std::string::npos;
  const std::size_t begin = equals == std::string::npos ? 0 : equals + 1;
  const bool inBrackets = argument.size() > begin && argument[begin] == '[' && argument.back() == ']';
  return inBrackets ? argument + endOfBrackets : argument;
}

std::string unmarked(std::string text) {
  if (text.ends_with(endOfBrackets)) text.pop_back();
  return text;
}

void takeMarksOff(CLI::App& app) {
  const auto takeOff = [](std::string& value) {
    value = unmarked(value);
    return std::string();
  };
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_min() > 0) option->transform(CLI::Validator(takeOff, "", ""));
  }
}

// What stands for the value in the help: "STEPS", "FILE", "auto|cpu|cuda".
std::string valueName(const CLI::Option& option) {
  const TypeText text = split(option.get_type_name());
  if (text.validator.starts_with('{')) {
    std::string choices = text.validator.substr(1, text.validator.find('}') - 1);
    std::replace(choices.begin(), choices.end(), ',', '|');
    return choices;
  }
  const bool isWord = text.validator.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string::npos;
  const std::string& type = isWord && !text.validator.empty() ? text.validator : text.type;
  if (type == "INT" || type == "UINT") return "INTEGER";
  return type == "FLOAT" ? "NUMBER" : type;
}

// "--steps INTEGER (default 100)"
class HelpFormat : public CLI::Formatter {
 public:
  HelpFormat() { column_width(40); }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = " " + valueName(*option);
    if (option->get_expected_max() > 1) text += "...";
    const std::string byDefault = option->get_default_str();
    if (option->get_required()) {
      text += " (required)";
    } else if (!byDefault.empty() && byDefault != "[]" && byDefault != "{}" && byDefault != "\"\"") {
      text += " (default " + byDefault + ")";
    }
    return text;
  }
};

struct CommonTexts {
  std::string device = "auto";
  std::string logLevel = "info";
  int threads = 0;
};

void declareCommon(CLI::App& app, CommonOptions& common, CommonTexts& texts, const Program& program) {
  const std::string group = "Common options";
  app.add_option("--device", texts.device, "Where to compute")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->group(group);
  app.add_option("--threads", texts.threads,
                 "Threads of each rank; by default OMP_NUM_THREADS, else the host's cores "
                 "shared among its ranks")
      ->check(CLI::Range(1, 4096))
      ->type_name("INTEGER")
      ->default_str("")
      ->group(group);
  app.add_option("--log-level", texts.logLevel, "Least severe log record to write")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->group(group);
  app.add_flag("--json", common.json, "Print one JSON document on stdout; the log stays on stderr")->group(group);
  app.set_config("--config", "", "TOML file with the same names as the flags; the command line wins")
      ->type_name("FILE")
      ->group(group);
  app.set_version_flag(
         "--version", [&program] { return versionText(program); }, "Print the versions and exit")
      ->group(group);
  app.set_help_flag("--help,-h", "Print this and exit")->group(group);
}

std::vector<std::string> flagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What was left over: unknown flags and superfluous words.
[[noreturn]] void reportUnknown(const CLI::App& app, const std::string& name) {
  const std::string first = unmarked(app.remaining().front());
  if (first.starts_with("-")) {
    const std::string flag = first.substr(0, first.find('='));
    usageError("unknown flag '" + flag + "'" + suggestionFor(flag, flagNames(app)), name);
  }
  usageError("unexpected argument '" + first + "'; a value follows its flag", name);
}

// Reads --config for CLI11. Unknown names are refused here, before CLI11 complains of anything that they explain.
class ConfigReader : public CLI::Config {
 public:
  ConfigReader(const CLI::App& app, std::string program) : app_(app), program_(std::move(program)) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string file = app_.get_config_ptr()->results().front();
    const std::string text(std::istreambuf_iterator<char>(input), {});
    const std::vector<std::string> known = flagNames(app_);
    std::vector<CLI::ConfigItem> found;
    for (const base::ConfigEntry& entry : base::parseConfigText(text, file)) {
      const std::string flag = "--" + entry.name;
      const std::string where = "the configuration file '" + file + "', line " + std::to_string(entry.line) + ": ";
      if (std::find(known.begin(), known.end(), flag) == known.end()) {
        usageError(where + "unknown name '" + entry.name + "'" + suggestionFor(flag, known), program_);
      }
      if (!app_.get_option(flag)->get_configurable()) {
        usageError(where + "'" + entry.name + "' is for the command line only", program_);
      }
      found.push_back({{}, entry.name, {}});
      std::ranges::transform(entry.values, std::back_inserter(found.back().inputs), markBrackets);
    }
    return found;
  }
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }  // is never written

 private:
  const CLI::App& app_;
  std::string program_;
};

// Whether the option takes this value, alone. For use after parsing has failed: it overwrites the variable.
bool takes(CLI::Option& option, const std::string& value) {
  option.clear();
  try {
    option.add_result(value);
    option.run_callback();
  } catch (const CLI::ParseError&) {
    return false;
  }
  return true;
}

bool isWholeNumber(const std::string& text) {
  const std::size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return text.size() > sign && text.find_first_not_of("0123456789", sign) == std::string::npos;
}

// CLI11 takes a number beyond its type for the largest there is, a negative one for what its bits mean without a sign,
// and one that begins with 0 as octal. What the variable holds then is told by its text.
void refuseMisreadNumbers(CLI::App& app, const std::string& name) {
  for (CLI::Option* option : app.get_options()) {
    const bool single = option->get_expected_max() == 1 && option->get_expected_min() == 1;
    if (!single || option->count() != 1 || option == app.get_config_ptr()) continue;
    const std::string value = option->results().front();
    if (!isWholeNumber(value)) continue;
    option->capture_default_str();
    const double meant = std::strtod(value.c_str(), nullptr);
    const double read = std::strtod(option->get_default_str().c_str(), nullptr);
    if (std::abs(meant - read) <= 1e-3 * std::abs(meant)) continue;  // six digits are shown of a fraction
    const bool octal = std::abs(read) < std::abs(meant) && value.find_first_not_of("+-") == value.find('0');
    usageError(option->get_name() + " is '" + value + "'; " +
                   (octal                   ? "numbers are written without zeros in front"
                    : meant < 0 && read > 0 ? "a whole number from 0 up is expected"
                                            : "that is beyond the numbers it can hold"),
               name);
  }
}

std::string listOf(std::string choices) {
  std::size_t last = choices.rfind(',');
  if (last != std::string::npos) choices.replace(last, 1, " or ");
  for (std::size_t at = choices.find(','); at != std::string::npos; at = choices.find(',', at + 2)) {
    choices.replace(at, 1, ", ");
  }
  return choices;
}

// What the option takes, for a value that it does not. Of the type, CLI11 keeps no more than the conversion: what it
// takes tells.
std::string expectationOf(CLI::Option& option, const std::string& value) {
  const std::string validator = split(option.get_type_name()).validator;
  if (validator.starts_with('{')) return listOf(validator.substr(1, validator.find('}') - 1)) + " is expected";
  if (validator == "FILE") {
    return std::filesystem::is_directory(value) ? "that is a folder, and a file is expected" : "that does not exist";
  }
  const std::size_t range = validator.find(" in [");
  if (range != std::string::npos) {
    std::string bounds = validator.substr(range + 5, validator.size() - range - 6);
    bounds.replace(bounds.find(" - "), 3, " to ");
    return (validator.starts_with("FLOAT") ? "a number from " : "a whole number from ") + bounds + " is expected";
  }
  if (option.get_expected_min() == 0) return "true or false is expected";
  if (isWholeNumber(value)) return "that is beyond the numbers it can hold";
  return takes(option, "0.5") ? "a number is expected" : "a whole number is expected";
}

// Names the first value that its option does not take; nothing when there is none.
void refuseBadValues(CLI::App& app, const std::string& name) {
  for (CLI::Option* option : app.get_options()) {
    const std::vector<std::string> values = option->results();
    for (const std::string& value : values) {
      if (takes(*option, value)) continue;
      usageError(option->get_name() + " is '" + value + "'; " + expectationOf(*option, value), name);
    }
  }
}

// The option that CLI11 says has no value.
void refuseLonelyFlag(const CLI::App& app, const std::string& complaint, const std::string& name) {
  for (const CLI::Option* option : app.get_options()) {
    if (!complaint.starts_with(option->get_name() + ":")) continue;
    usageError(option->get_name() + " is given without a value; it takes " + valueName(*option), name);
  }
}

[[noreturn]] void reportUnreadableConfig(const CLI::App& app, const std::string& name) {
  const std::string file = app.get_config_ptr()->results().front();
  const bool folder = std::filesystem::is_directory(file), exists = std::filesystem::exists(file);
  usageError("the configuration file '" + file + "' " +
                 (folder   ? "is a folder"
                  : exists ? "cannot be read"
                           : "does not exist"),
             name);
}

void refuseDoubleFlags(const CLI::App& app, const std::string& name) {
  for (const CLI::Option* option : app.get_options()) {
    const bool single = option->get_expected_max() <= 1;
    if (single && option->count() > 1) usageError(option->get_name() + " is given twice; it takes one value", name);
  }
}

void refuseAbsentDevice(Device device) {
  const std::string reason = device == Device::cuda ? kernels::whyNoCuda() : "";
  if (reason.empty()) return;
  throw base::Error(base::ErrorKind::usage, "--device cuda: " + reason + "; --device auto takes the CPU then");
}

Device parseDevice(const std::string& text) {
  return text == "cuda" ? Device::cuda : text == "cpu" ? Device::cpu : Device::automatic;
}

std::map<std::string, std::string> optionsUsed(const CLI::App& app) {
  std::map<std::string, std::string> used;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option == app.get_help_ptr() || option == app.get_version_ptr()) continue;
    const bool flag = option->get_expected_min() == 0;
    std::string value = option->empty() ? option->get_default_str() : CLI::detail::join(option->results(), " ");
    if (flag && option->empty()) value = "false";
    used[option->get_lnames().front()] = value;
  }
  return used;
}

std::set<std::string> optionsGiven(const CLI::App& app) {
  std::set<std::string> given;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->empty() && !option->get_lnames().empty()) given.insert(option->get_lnames().front());
  }
  return given;
}

// Lets CLI11 parse, and puts its complaints into our words.
void parse(CLI::App& app, std::vector<std::string> arguments, const std::string& name,
           std::optional<std::string>& answer) {
  std::ranges::transform(arguments, arguments.begin(), markBrackets);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    answer = app.help();
  } catch (const CLI::CallForVersion& version) {
    answer = version.what();
  } catch (const CLI::ExtrasError&) {
    reportUnknown(app, name);
  } catch (const CLI::FileError&) {
    reportUnreadableConfig(app, name);
  } catch (const CLI::ParseError& error) {
    if (!app.remaining().empty()) reportUnknown(app, name);  // a mistyped flag explains a missing one
    refuseDoubleFlags(app, name);
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) refuseLonelyFlag(app, error.what(), name);
    if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr) refuseBadValues(app, name);
    usageError(error.what(), name);
  }
}

ParsedCommandLine parseCommand(const Command& command, const std::string& name, std::vector<std::string> arguments,
                               const Program& program) {
  ParsedCommandLine parsed{.command = &command};
  CommonTexts texts;
  CLI::App app(command.purpose.empty() ? program.purpose : command.purpose, name);
  app.formatter(std::make_shared<HelpFormat>());
  app.option_defaults()->always_capture_default();
  app.config_formatter(std::make_shared<ConfigReader>(app, name));
  if (command.declare) command.declare(app);
  declareCommon(app, parsed.common, texts, program);
  takeMarksOff(app);
  parse(app, std::move(arguments), name, parsed.answer);
  if (parsed.answer) return parsed;
  refuseDoubleFlags(app, name);
  refuseMisreadNumbers(app, name);
  parsed.common.device = parseDevice(texts.device);
  refuseAbsentDevice(parsed.common.device);
  parsed.common.logLevel = base::parseLogLevel(texts.logLevel);
  parsed.common.threads = texts.threads;
  parsed.threadsGiven = texts.threads > 0;
  parsed.common.used = optionsUsed(app);
  parsed.common.given = optionsGiven(app);
  refuseOptionsOfAnotherDevice(parsed.common);
  return parsed;
}

std::string listOfCommands(const Program& program) {
  std::string text = program.purpose + "\nUsage: " + program.name + " COMMAND [OPTIONS]\n\nCommands:\n";
  std::size_t widest = 0;
  for (const Command& command : program.commands) widest = std::max(widest, command.name.size());
  for (const Command& command : program.commands) {
    text += "  " + command.name + std::string(widest - command.name.size() + 3, ' ') + command.purpose + "\n";
  }
  return text + "\n'" + program.name + " COMMAND --help' lists the options of a command.";
}

std::vector<std::string> commandNames(const Program& program) {
  std::vector<std::string> names;
  for (const Command& command : program.commands) names.push_back(command.name);
  return names;
}

}  // namespace

ParsedCommandLine parseCommandLine(const std::vector<std::string>& arguments, const Program& program) {
  const bool single = program.commands.size() == 1 && program.commands.front().name.empty();
  if (single) return parseCommand(program.commands.front(), program.name, arguments, program);

  const std::vector<std::string> names = commandNames(program);
  if (arguments.empty()) usageError("a command is missing: " + CLI::detail::join(names, ", "), program.name);
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h") return {.answer = listOfCommands(program)};
  if (first == "--version") return {.answer = versionText(program)};
  for (const Command& command : program.commands) {
    if (command.name != first) continue;
    return parseCommand(command, program.name + " " + first, {arguments.begin() + 1, arguments.end()}, program);
  }
  usageError((first.starts_with("-") ? "the command comes first, not '" : "unknown command '") + first + "'" +
                 suggestionFor(first, names),
             program.name);
}

}  // namespace tandem::app
