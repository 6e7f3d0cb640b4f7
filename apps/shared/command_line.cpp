#include "apps/shared/command_line.h"

#include <algorithm>
#include <sstream>

#include "apps/shared/suggestion.h"
#include "apps/shared/version.h"
#include "common/base/error.h"

namespace tandem::app {
namespace {

[[noreturn]] void usageError(const std::string& message, const std::string& helpOf) {
  throw base::Error(base::ErrorKind::usage, message + " ('" + helpOf + " --help' lists what there is)");
}

// "--steps INTEGER (default 100)"
class HelpFormat : public CLI::Formatter {
 public:
  HelpFormat() {
    label("INT", "INTEGER");
    label("UINT", "INTEGER");
    label("FLOAT", "NUMBER");
    column_width(40);
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = " " + valueName(option->get_type_name());
    if (option->get_expected_max() > 1) text += "...";
    const std::string byDefault = option->get_default_str();
    if (option->get_required()) {
      text += " (required)";
    } else if (!byDefault.empty() && byDefault != "[]" && byDefault != "{}" && byDefault != "\"\"") {
      text += " (default " + byDefault + ")";
    }
    return text;
  }

 private:
  // CLI11 joins the type and what the validators say by colons: "TEXT:FILE", "NAME:{auto,cpu}", "INT:INT in [1 - 9]".
  std::string valueName(const std::string& type) const {
    const std::size_t colon = type.find(':');
    const std::string validator = colon == std::string::npos ? "" : type.substr(colon + 1);
    const bool word = !validator.empty() &&
                      std::all_of(validator.begin(), validator.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
    if (word) return validator;
    if (!validator.starts_with('{')) return get_label(type.substr(0, colon));
    std::string choices = validator.substr(1, validator.find('}') - 1);
    std::replace(choices.begin(), choices.end(), ',', '|');
    return choices;
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

// What was left over: unknown flags, superfluous words, and unknown names of the configuration file.
[[noreturn]] void reportUnknown(const CLI::App& app, const std::string& name) {
  const std::string first = app.remaining().front();
  if (first.starts_with("-")) {
    const std::string flag = first.substr(0, first.find('='));
    usageError("unknown flag '" + flag + "'" + suggestionFor(flag, flagNames(app)), name);
  }
  usageError("unexpected argument '" + first + "'; a value follows its flag", name);
}

void refuseUnknownConfigNames(const CLI::App& app, const std::string& name, const std::string& file) {
  for (const CLI::ConfigItem& item : app.get_config_formatter_base()->from_file(file)) {
    if (item.name == "++" || item.name == "--") {
      usageError("the configuration file '" + file + "' has the section [" + CLI::detail::join(item.parents, ".") +
                     "]; options stand at its top level",
                 name);
    }
    const std::vector<std::string> known = flagNames(app);
    const std::string flag = "--" + item.name;
    if (std::find(known.begin(), known.end(), flag) != known.end()) continue;
    usageError(
        "the configuration file '" + file + "' has the unknown name '" + item.name + "'" + suggestionFor(flag, known),
        name);
  }
}

void refuseDoubleFlags(const CLI::App& app, const std::string& name) {
  for (const CLI::Option* option : app.get_options()) {
    const bool single = option->get_expected_max() <= 1;
    if (single && option->count() > 1) usageError(option->get_name() + " is given twice; it takes one value", name);
  }
}

void refuseAbsentDevice(Device device) {
  if (device != Device::cuda) return;
  throw base::Error(base::ErrorKind::usage,
                    "--device cuda: this build has no CUDA backend; use --device cpu or auto, or a build made with the "
                    "CUDA toolkit");
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

// Lets CLI11 parse, and puts its complaints into our words.
void parse(CLI::App& app, std::vector<std::string> arguments, const std::string& name,
           std::optional<std::string>& answer) {
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    answer = app.help();
  } catch (const CLI::CallForVersion& version) {
    answer = version.what();
  } catch (const CLI::ExtrasError&) {
    reportUnknown(app, name);
  } catch (const CLI::ArgumentMismatch& error) {
    refuseDoubleFlags(app, name);
    usageError(error.what(), name);
  } catch (const CLI::ParseError& error) {
    if (!app.remaining().empty()) reportUnknown(app, name);  // a mistyped flag explains a missing one
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
  app.allow_config_extras(CLI::config_extras_mode::ignore);  // they are refused below, in our words
  if (command.declare) command.declare(app);
  declareCommon(app, parsed.common, texts, program);
  parse(app, std::move(arguments), name, parsed.answer);
  if (parsed.answer) return parsed;
  refuseDoubleFlags(app, name);
  if (app.get_config_ptr()->count() > 0) {
    refuseUnknownConfigNames(app, name, app.get_config_ptr()->as<std::string>());
  }
  parsed.common.device = parseDevice(texts.device);
  refuseAbsentDevice(parsed.common.device);
  parsed.common.logLevel = base::parseLogLevel(texts.logLevel);
  parsed.common.threads = texts.threads;
  parsed.threadsGiven = texts.threads > 0;
  parsed.common.used = optionsUsed(app);
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
