#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "apps/evaluate/commands.h"
#include "apps/evaluate/loaded_model.h"
#include "apps/evaluate/task_report.h"
#include "apps/shared/chat.h"
#include "common/base/files.h"
#include "common/tokenizer/tokenizer_json.h"
#include "common/train/task_evaluation.h"

namespace tandem::evaluate {
namespace {

struct TasksOptions {
  ModelOptions model;
  std::vector<std::string> files;
  std::vector<std::string> exampleFiles;
  std::string log;
  bool chat = false;
  std::string chatTemplate;
  train::TaskOptions evaluation;
};

void demandAtLeast(const char* option, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  throw base::Error(base::ErrorKind::usage, std::string(option) + " must be at least " + std::to_string(least));
}

void check(const TasksOptions& options) {
  if (!options.chat && (!options.chatTemplate.empty() || !options.evaluation.prompts.system.empty())) {
    throw base::Error(base::ErrorKind::usage, "--chat-template and --system are for --chat");
  }
  if (options.chat && options.evaluation.prompts.beginToken) {
    throw base::Error(base::ErrorKind::usage, "--begin-token is not for --chat: the template says what begins");
  }
  demandAtLeast("--few-shot", options.evaluation.prompts.fewShot, 0);
  demandAtLeast("--limit", options.evaluation.limit, 0);
  demandAtLeast("--batch", options.evaluation.batch, 1);
  demandAtLeast("--max-tokens", options.evaluation.maxTokens, 0);
}

std::vector<data::Task> readTasks(const std::vector<std::string>& files) {
  std::vector<data::Task> tasks;
  std::set<std::string> names;
  for (const std::string& file : files) {
    tasks.push_back(data::readTask(file));
    if (!names.insert(tasks.back().name).second) {
      throw base::Error(base::ErrorKind::usage, "'" + file + "' is a second file of the task " + tasks.back().name);
    }
  }
  return tasks;
}

// A file of examples that no task takes any from was not meant so.
void checkExamples(const std::vector<data::Task>& tasks, const std::vector<data::Task>& others, std::int64_t fewShot) {
  if (!others.empty() && fewShot == 0)
    throw base::Error(base::ErrorKind::usage, "--few-shot-from goes with --few-shot");
  for (const data::Task& other : others) {
    const auto found = std::ranges::find(tasks, other.name, &data::Task::name);
    if (found == tasks.end()) {
      throw base::Error(base::ErrorKind::usage, "'" + other.file + "', of --few-shot-from, is of the task " +
                                                    other.name + ", which is not measured");
    }
    if (found->kind == other.kind && found->choicesAreQuestions == other.choicesAreQuestions) continue;
    throw base::Error(base::ErrorKind::usage, "the examples of '" + other.file + "' are of another kind than '" +
                                                  found->file + "': " + other.name + " is not one task");
  }
}

// Where few-shot examples of a task come from.
const std::vector<data::TaskItem>& examplesOf(const data::Task& task, const std::vector<data::Task>& others) {
  const auto found = std::ranges::find(others, task.name, &data::Task::name);
  return found != others.end() ? found->items : task.items;
}

int run(comm::Communicator& world, const app::CommonOptions& common, TasksOptions options) {
  std::vector<data::Task> tasks, others;
  comm::agreeOn(world, [&] {
    check(options);
    tasks = readTasks(options.files);
    others = readTasks(options.exampleFiles);
    checkExamples(tasks, others, options.evaluation.prompts.fewShot);
  });
  const LoadedModel loaded = loadModel(world, common, options.model);
  std::optional<tokenizer::Tokenizer> tokens;
  comm::agreeOn(world, [&] {
    if (loaded.tokenizer.empty()) {
      throw base::Error(base::ErrorKind::badData, "checkpoint '" + loaded.folder + "' holds no tokenizer");
    }
    tokens.emplace(tokenizer::fromJson(loaded.tokenizer, "the checkpoint's tokenizer"));
    if (options.chat) {
      options.evaluation.prompts.chat =
          app::chooseChatTemplate(options.chatTemplate, loaded.chatTemplate, loaded.folder);
    }
  });
  std::vector<train::TaskResult> results;
  std::string log;
  for (const data::Task& task : tasks) {
    const std::vector<data::TaskItem>& examples = examplesOf(task, others);
    results.push_back(train::evaluateTask(task, examples, loaded.configuration, *loaded.parameters, *tokens,
                                          options.evaluation, loaded.device(), world, loaded.split.get()));
    TANDEM_LOG(info) << task.name << ": " << results.back().items << " items of '" << task.file << "'";
    if (options.log.empty() || world.rank() != 0) continue;
    log += taskLog(task, results.back(), {task, examples, options.evaluation.prompts, *tokens});
  }
  comm::agreeOn(world, [&] {
    if (!options.log.empty() && world.rank() == 0) base::replaceFile(options.log, log);
  });
  if (common.json) {
    app::printJson(taskResultsJson(tasks, results, options.evaluation.prompts.fewShot));
  } else if (world.rank() == 0) {
    std::cout << taskTable(results);
  }
  return 0;
}

}  // namespace

app::Command tasksCommand() {
  const auto options = std::make_shared<TasksOptions>();
  return {
      .name = "tasks",
      .purpose = "Questions with known answers: public tasks as they are published, and one's own.",
      .declare =
          [options](CLI::App& app) {
            train::TaskOptions& evaluation = options->evaluation;
            declareModelOptions(app, options->model);
            declareCaches(app, evaluation.caches);
            app.add_option("--task", options->files,
                           "HellaSwag, ARC, PIQA, WinoGrande, LAMBADA, GSM8K (.jsonl), MMLU (.csv), one's own (.json)")
                ->required()
                ->check(CLI::ExistingFile)
                ->type_name("FILE");
            app.add_option("--few-shot", evaluation.prompts.fewShot,
                           "Examples with their answers before each question: the first that are not it")
                ->type_name("EXAMPLES");
            app.add_option("--few-shot-from", options->exampleFiles,
                           "Files of the same tasks to take examples from; else the tasks' own")
                ->check(CLI::ExistingFile)
                ->type_name("FILE");
            app.add_flag("--chat", options->chat, "Questions are a user's turns, answers the model's");
            app.add_option("--chat-template", options->chatTemplate,
                           "tandem, chatml, llama3, mistral or zephyr; without it the checkpoint's own")
                ->type_name("NAME");
            app.add_option("--system", evaluation.prompts.system, "With --chat: what the system says first")
                ->type_name("TEXT");
            app.add_flag("--begin-token", evaluation.prompts.beginToken,
                         "Begin contexts with the begin token, where the tokenizer does not do so by itself");
            app.add_option("--limit", evaluation.limit, "The first items of each task; 0: all")->type_name("ITEMS");
            app.add_option("--batch", evaluation.batch, "Items at once")->type_name("ITEMS");
            app.add_option("--max-tokens", evaluation.maxTokens,
                           "Of an answer that is written; 0: as the task says, else 256")
                ->type_name("TOKENS");
            app.add_option("--log", options->log, "Write what came of each item, a JSON line each")->type_name("FILE");
          },
      .run = [options](comm::Communicator& world,
                       const app::CommonOptions& common) { return run(world, common, *options); }};
}

}  // namespace tandem::evaluate
