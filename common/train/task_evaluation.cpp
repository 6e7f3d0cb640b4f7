#include "common/train/task_evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/data/python_text.h"
#include "common/runtime/generator.h"

namespace tandem::train {
namespace {

using base::Error;
using base::ErrorKind;
using data::Task;
using data::TaskItem;
using data::TaskKind;
using runtime::ContinuationGroup;
using runtime::ContinuationScores;

// One task on one rank.
class TaskRun {
 public:
  TaskRun(const Task& task, std::span<const TaskItem> examples, const model::Configuration& configuration,
          const runtime::ParameterStore& parameters, const tokenizer::Tokenizer& tokenizer, const TaskOptions& options,
          const Device& device, comm::Communicator& communicator, runtime::DecodingRanks* split)
      : task_(task),
        configuration_(configuration),
        parameters_(parameters),
        options_(options),
        device_(device),
        communicator_(communicator),
        split_(split),
        prompts_(task, examples, options.prompts, tokenizer),
        count_(options.limit > 0 ? std::min(options.limit, std::ssize(task.items)) : std::ssize(task.items)) {}

  std::vector<ItemOutcome> outcomes() {
    std::vector<ItemOutcome> outcomes(static_cast<std::size_t>(count_));
    for (std::size_t i = 0; i < outcomes.size(); ++i) outcomes[i].item = static_cast<std::int64_t>(i);
    if (task_.kind == TaskKind::generation) {
      write(outcomes);
    } else {
      score(outcomes);
    }
    return outcomes;
  }

 private:
  const TaskItem& item(std::int64_t number) const { return task_.items[static_cast<std::size_t>(number)]; }

  // Adds the item to an error's message.
  template <class Work>
  void forItem(std::int64_t number, const Work& work) const {
    try {
      work();
    } catch (const Error& error) {
      throw Error(error.kind(), "'" + task_.file + "', item " + std::to_string(number + 1) + ": " + error.message());
    }
  }

  int copies() const { return split_ != nullptr ? split_->grid().data : communicator_.size(); }
  int copy() const { return split_ != nullptr ? split_->own().data : communicator_.rank(); }

  // The items of this copy of the model: longest first, in turn, so that all copies have about as much to do, and
  // batches waste little on padding.
  std::vector<std::int64_t> ownItems(const std::vector<std::int64_t>& lengths) const {
    std::vector<std::int64_t> order(lengths.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(),
                             [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; });
    std::vector<std::int64_t> own;
    for (auto i = static_cast<std::size_t>(copy()); i < order.size(); i += static_cast<std::size_t>(copies())) {
      own.push_back(order[i]);
    }
    return own;
  }

  void score(std::vector<ItemOutcome>& outcomes) {
    // Log likelihoods and whether they are greedy, of all items' choices one after another; zeros for other ranks'.
    std::vector<double> numbers;
    std::vector<std::size_t> offsets;
    comm::agreeOn(communicator_, [&] {
      std::vector<ContinuationGroup> groups;
      std::vector<std::int64_t> lengths;
      std::int64_t longest = 0;
      for (std::int64_t i = 0; i < count_; ++i) {
        groups.push_back(encodedItem(i));
        std::int64_t length = 0;
        for (const runtime::ContinuationRequest& request : groups.back()) {
          length += std::ssize(request.tokens);
          longest = std::max(longest, std::ssize(request.tokens));
        }
        lengths.push_back(length);
        offsets.push_back(numbers.size());
        numbers.resize(numbers.size() + 2 * groups.back().size());
      }
      const std::vector<std::int64_t> own = ownItems(lengths);
      if (own.empty()) return;
      std::vector<ContinuationGroup> mine;
      for (const std::int64_t i : own) mine.push_back(groups[static_cast<std::size_t>(i)]);
      runtime::ContinuationScorer scorer(configuration_, parameters_, std::min(options_.batch, std::ssize(mine)),
                                         longest, device_.backend, device_.stream, device_.arena, split_,
                                         options_.caches);
      const std::vector<ContinuationScores> scores =
          scorer.run(mine, runtime::ContinuationScorer::sharedPrefix(groups));
      if (split_ != nullptr && !split_->isChooser()) return;  // one of its copy speaks for all
      for (std::size_t i = 0; i < own.size(); ++i) {
        double* target = numbers.data() + offsets[static_cast<std::size_t>(own[i])];
        for (const runtime::ContinuationScore& one : scores[i]) {
          *target++ = one.logLikelihood;
          *target++ = one.isGreedy ? 1 : 0;
        }
      }
    });
    communicator_.allReduce({numbers.data(), base::DType::f64, std::ssize(numbers)});
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      const std::size_t end = i + 1 < offsets.size() ? offsets[i + 1] : numbers.size();
      for (std::size_t at = offsets[i]; at < end; at += 2) {
        outcomes[i].scores.push_back({.logLikelihood = numbers[at], .isGreedy = numbers[at + 1] > 0});
      }
    }
  }

  ContinuationGroup encodedItem(std::int64_t number) {
    ContinuationGroup group;
    forItem(number, [&] {
      for (const PromptTexts& texts : prompts_.texts(item(number))) {
        group.push_back(prompts_.encode(texts, configuration_.maximumPositions));
        demandKnown(group.back().tokens);
      }
    });
    return group;
  }

  // A tokenizer may have more tokens than the model's table.
  void demandKnown(const std::vector<std::int32_t>& tokens) const {
    for (const std::int32_t token : tokens) {
      if (token < configuration_.vocabularySize) continue;
      throw Error(ErrorKind::badData, "its text has the token " + std::to_string(token) + ", the model only " +
                                          std::to_string(configuration_.vocabularySize));
    }
  }

  void write(std::vector<ItemOutcome>& outcomes) {
    using Json = nlohmann::json;
    Json mine = Json::array();
    comm::agreeOn(communicator_, [&] {
      const std::int64_t maxTokens = options_.maxTokens > 0 ? options_.maxTokens : task_.maxTokens;
      if (maxTokens >= configuration_.maximumPositions) {
        throw Error(ErrorKind::usage, "task " + task_.name + " asks for answers of " + std::to_string(maxTokens) +
                                          " tokens, and the model has " +
                                          std::to_string(configuration_.maximumPositions) +
                                          " positions; --max-tokens makes answers shorter");
      }
      std::vector<runtime::GenerationRequest> requests;
      std::vector<std::int64_t> lengths;
      for (std::int64_t i = 0; i < count_; ++i) {
        forItem(i, [&] { requests.push_back(request(i, maxTokens)); });
        lengths.push_back(std::ssize(requests.back().prompt));
      }
      const std::vector<std::int64_t> own = ownItems(lengths);
      if (own.empty()) return;
      const std::int64_t batch = std::min(options_.batch, std::ssize(own));
      runtime::Generator generator(configuration_, parameters_, batch, *std::ranges::max_element(lengths) + maxTokens,
                                   device_.backend, device_.stream, device_.arena, split_, options_.caches);
      for (std::size_t begin = 0; begin < own.size(); begin += static_cast<std::size_t>(batch)) {
        const auto part = std::span(own).subspan(begin, std::min(static_cast<std::size_t>(batch), own.size() - begin));
        for (const auto& [number, text] : writeBatch(generator, requests, part)) mine.push_back({number, text});
      }
      if (split_ != nullptr && !split_->isFirst()) mine = Json::array();
    });
    const std::string sent = base::lenientJsonText(mine);
    for (const std::string& texts : comm::allGatherTexts(communicator_, sent)) {
      for (const Json& one : base::parseJson(texts)) {
        ItemOutcome& outcome = outcomes[one[0].get<std::size_t>()];
        outcome.text = one[1].get<std::string>();
        outcome.answers = matchAnswer(task_, outcome.text, item(outcome.item).target);
      }
    }
  }

  runtime::GenerationRequest request(std::int64_t number, std::int64_t maxTokens) {
    const std::string context = prompts_.texts(item(number)).front().context;
    std::vector<std::int32_t> tokens = prompts_.encodeContext(context, configuration_.maximumPositions - maxTokens);
    if (tokens.empty()) throw Error(ErrorKind::badData, "its prompt is empty, and there is no token to begin with");
    demandKnown(tokens);
    return {.prompt = std::move(tokens),
            .maxTokens = maxTokens,
            .stopTokens = prompts_.stopTokens(),
            .sequence = static_cast<std::uint64_t>(number)};
  }

  std::vector<std::pair<std::int64_t, std::string>> writeBatch(runtime::Generator& generator,
                                                               const std::vector<runtime::GenerationRequest>& requests,
                                                               std::span<const std::int64_t> numbers) const {
    std::vector<runtime::GenerationRequest> batch;
    std::vector<std::pair<std::int64_t, std::string>> texts;
    for (const std::int64_t number : numbers) {
      batch.push_back(requests[static_cast<std::size_t>(number)]);
      texts.emplace_back(number, "");
    }
    const tokenizer::Tokenizer& tokens = prompts_.tokenizer();
    const auto onToken = [&](std::int64_t index, std::int32_t token) {
      const auto id = static_cast<tokenizer::TokenId>(token);
      // A vocabulary may be smaller than the model's table; the rows beyond it stand for nothing.
      if (token >= tokens.vocabularySize() || tokens.isSpecial(id)) return true;
      std::string& text = texts[static_cast<std::size_t>(index)].second;
      text += tokens.tokenBytes(id);
      return !cutAtStop(text);
    };
    generator.run(batch, {.temperature = 0}, onToken);
    return texts;
  }

  bool cutAtStop(std::string& text) const {
    std::size_t end = text.size();
    for (const std::string& stop : task_.stops) end = std::min(end, text.find(stop));
    const bool stops = end < text.size();
    text.resize(end);
    return stops;
  }

  const Task& task_;
  const model::Configuration& configuration_;
  const runtime::ParameterStore& parameters_;
  const TaskOptions& options_;
  const Device& device_;
  comm::Communicator& communicator_;
  runtime::DecodingRanks* split_;
  TaskPrompts prompts_;
  std::int64_t count_;
};

// The metrics of a task, without values.
std::vector<TaskMetric> metricsOf(const Task& task) {
  std::vector<TaskMetric> metrics;
  if (task.kind == TaskKind::generation) {
    for (const std::string& filter : answerFilters(task.form)) metrics.push_back({"exact_match", filter, 0, {}, true});
    return metrics;
  }
  metrics.push_back({.name = "acc"});
  if (task.kind == TaskKind::cloze) {
    metrics.push_back({.name = "perplexity", .higherIsBetter = false});
  } else if (task.normalisesLengths) {
    metrics.push_back({.name = "acc_norm"});
    metrics.push_back({.name = "acc_bytes"});
  }
  return metrics;
}

// Whether the right choice has the largest log likelihood per unit of its length; the first of equals counts.
template <class Length>
double isChosen(const TaskItem& item, const ItemOutcome& outcome, const Length& length) {
  double largest = 0;
  std::int64_t chosen = -1;
  for (std::size_t i = 0; i < outcome.scores.size(); ++i) {
    const auto units = static_cast<double>(length(i));
    const double value = units > 0 ? outcome.scores[i].logLikelihood / units : -std::numeric_limits<double>::infinity();
    if (chosen >= 0 && value <= largest) continue;
    largest = value;
    chosen = static_cast<std::int64_t>(i);
  }
  return chosen == item.answer ? 1 : 0;
}

// An item's part of each metric: what is averaged.
std::vector<double> valuesOf(const Task& task, const TaskItem& item, const ItemOutcome& outcome) {
  std::vector<double> values;
  if (task.kind == TaskKind::generation) {
    for (const MatchedAnswer& answer : outcome.answers) values.push_back(answer.isRight ? 1 : 0);
    return values;
  }
  if (task.kind == TaskKind::cloze) {
    return {outcome.scores.front().isGreedy ? 1.0 : 0.0, outcome.scores.front().logLikelihood};
  }
  values.push_back(isChosen(item, outcome, [](std::size_t) { return 1; }));
  if (task.normalisesLengths) {
    values.push_back(isChosen(item, outcome, [&](std::size_t i) { return data::countCharacters(item.choices[i]); }));
    values.push_back(isChosen(item, outcome, [&](std::size_t i) { return item.choices[i].size(); }));
  }
  return values;
}

void summarise(TaskMetric& metric, std::size_t number, const std::vector<ItemOutcome>& outcomes) {
  const auto count = static_cast<double>(outcomes.size());
  double sum = 0, squares = 0;
  for (const ItemOutcome& outcome : outcomes) sum += outcome.values[number];
  const double mean = sum / count;
  for (const ItemOutcome& outcome : outcomes) squares += std::pow(outcome.values[number] - mean, 2);
  metric.value = mean;
  if (outcomes.size() > 1) metric.standardError = std::sqrt(squares / (count - 1)) / std::sqrt(count);
  if (metric.name == "perplexity") {
    metric.value = std::exp(-mean);
    if (metric.standardError) *metric.standardError *= metric.value;
  }
}

}  // namespace

TaskResult evaluateTask(const Task& task, std::span<const TaskItem> examples, const model::Configuration& configuration,
                        const runtime::ParameterStore& parameters, const tokenizer::Tokenizer& tokenizer,
                        const TaskOptions& options, const Device& device, comm::Communicator& communicator,
                        runtime::DecodingRanks* split) {
  TaskResult result{.name = task.name, .group = task.group, .metrics = metricsOf(task), .outcomes = {}};
  result.outcomes =
      TaskRun(task, examples, configuration, parameters, tokenizer, options, device, communicator, split).outcomes();
  result.items = std::ssize(result.outcomes);
  for (ItemOutcome& outcome : result.outcomes) {
    outcome.values = valuesOf(task, task.items[static_cast<std::size_t>(outcome.item)], outcome);
  }
  for (std::size_t i = 0; i < result.metrics.size(); ++i) summarise(result.metrics[i], i, result.outcomes);
  return result;
}

std::vector<TaskMetric> combine(std::span<const TaskResult> tasks) {
  std::vector<TaskMetric> combined = tasks.front().metrics;
  for (std::size_t i = 0; i < combined.size(); ++i) {
    double sum = 0, items = 0, spread = 0;
    for (const TaskResult& task : tasks) {
      TANDEM_ASSERT(task.metrics[i].name == combined[i].name, "tasks of a group have the same metrics");
      const auto count = static_cast<double>(task.items);
      sum += count * task.metrics[i].value;
      items += count;
      spread += (count - 1) * count * std::pow(task.metrics[i].standardError.value_or(0), 2);
    }
    combined[i].value = sum / items;
    // The pooled deviation of the tasks' items (the harness's pooled_sample_stderr).
    const double freedom = items - static_cast<double>(tasks.size());
    combined[i].standardError.reset();
    if (freedom > 0) combined[i].standardError = std::sqrt(spread / freedom) / std::sqrt(items);
  }
  return combined;
}

}  // namespace tandem::train
