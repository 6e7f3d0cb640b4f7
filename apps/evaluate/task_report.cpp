#include "apps/evaluate/task_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace tandem::evaluate {
namespace {

using Json = nlohmann::ordered_json;
using train::TaskMetric;
using train::TaskResult;

struct Group {
  std::string name;
  std::int64_t items = 0;
  std::vector<TaskMetric> metrics;
};

// Groups of more than one task, in the order of their first ones.
std::vector<Group> groupsOf(const std::vector<TaskResult>& results) {
  std::vector<Group> groups;
  for (const TaskResult& first : results) {
    if (first.group.empty() || std::ranges::find(groups, first.group, &Group::name) != groups.end()) continue;
    std::vector<TaskResult> members;
    Group group{.name = first.group, .items = 0, .metrics = {}};
    for (const TaskResult& result : results) {
      if (result.group != first.group) continue;
      members.push_back(result);
      group.items += result.items;
    }
    if (members.size() == 1) continue;
    group.metrics = train::combine(members);
    groups.push_back(std::move(group));
  }
  return groups;
}

Json metricsJson(const std::string& name, const std::vector<TaskMetric>& metrics) {
  Json json = {{"alias", name}};
  for (const TaskMetric& metric : metrics) {
    json[metric.name + "," + metric.filter] = metric.value;
    const Json error = metric.standardError ? Json(*metric.standardError) : Json("N/A");
    json[metric.name + "_stderr," + metric.filter] = error;
  }
  return json;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string tableLine(const std::string& name, const TaskMetric& metric, std::int64_t items) {
  char value[360];  // a perplexity may have as many digits as there are
  char error[360] = "";
  std::snprintf(value, sizeof value, "%.4f", metric.value);
  if (metric.standardError) std::snprintf(error, sizeof error, " +- %.4f", *metric.standardError);
  const std::string label = metric.name + (metric.filter == "none" ? "" : "," + metric.filter);
  return padded(name, 28) + " " + padded(label, 30) + " " + value + error + "  of " + std::to_string(items) +
         " items\n";
}

}  // namespace

std::string taskResultsJson(const std::vector<data::Task>& tasks, const std::vector<TaskResult>& results,
                            std::int64_t fewShot) {
  Json document = {{"results", Json::object()}};
  for (const TaskResult& result : results) document["results"][result.name] = metricsJson(result.name, result.metrics);
  for (const Group& group : groupsOf(results)) document["groups"][group.name] = metricsJson(group.name, group.metrics);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const TaskResult& result = results[i];
    document["n-shot"][result.name] = fewShot;
    document["n-samples"][result.name] = {{"original", tasks[i].items.size()}, {"effective", result.items}};
    for (const TaskMetric& metric : result.metrics) {
      document["higher_is_better"][result.name][metric.name] = metric.higherIsBetter;
    }
  }
  return base::lenientJsonText(document);
}

std::string taskLog(const data::Task& task, const TaskResult& result, const train::TaskPrompts& prompts) {
  std::string log;
  for (const train::ItemOutcome& outcome : result.outcomes) {
    const data::TaskItem& item = task.items[static_cast<std::size_t>(outcome.item)];
    Json line = {{"task", task.name}, {"doc_id", outcome.item}};
    line["target"] = task.kind == data::TaskKind::multipleChoice ? Json(item.answer) : Json(item.target);
    line["arguments"] = Json::array();
    for (const train::PromptTexts& texts : prompts.texts(item)) {
      line["arguments"].push_back(Json::array({texts.context, texts.continuation}));
    }
    line["resps"] = Json::array();
    for (const runtime::ContinuationScore& score : outcome.scores) {
      line["resps"].push_back(Json::array({score.logLikelihood, score.isGreedy}));
    }
    if (task.kind == data::TaskKind::generation) line["resps"].push_back(outcome.text);
    for (const train::MatchedAnswer& answer : outcome.answers) line["filtered_resps"][answer.filter] = answer.answer;
    for (std::size_t i = 0; i < outcome.values.size(); ++i) {
      const TaskMetric& metric = result.metrics[i];
      line[metric.name + "," + metric.filter] = outcome.values[i];
    }
    log += base::lenientJsonText(line) + "\n";
  }
  return log;
}

std::string taskTable(const std::vector<TaskResult>& results) {
  std::string table;
  for (const TaskResult& result : results) {
    for (const TaskMetric& metric : result.metrics) table += tableLine(result.name, metric, result.items);
  }
  for (const Group& group : groupsOf(results)) {
    for (const TaskMetric& metric : group.metrics) table += tableLine(group.name + " (all)", metric, group.items);
  }
  return table;
}

}  // namespace tandem::evaluate
