#include "common/train/task_prompts.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/data/python_text.h"

namespace tandem::train {
namespace {

using base::Error;
using base::ErrorKind;
using data::Task;
using data::TaskItem;
using data::TaskKind;
using tokenizer::ChatMessage;
using tokenizer::ChatRole;

bool sameItem(const TaskItem& a, const TaskItem& b) {
  return a.question == b.question && a.choices == b.choices && a.answer == b.answer && a.target == b.target;
}

const std::string& rightChoice(const TaskItem& item) { return item.choices[static_cast<std::size_t>(item.answer)]; }

// A blank in some templates, nothing in others.
std::string textBeforeAnswers(const tokenizer::ChatEncoder& chat) {
  const std::vector<ChatMessage> both = {{ChatRole::user, "q"}, {ChatRole::assistant, "a"}};
  const std::size_t asked = chat.text(std::span(both).first(1), true).size();
  const std::string whole = chat.text(both, false);
  return whole.substr(asked, whole.find('a', asked) - asked);
}

}  // namespace

TaskPrompts::TaskPrompts(const Task& task, std::span<const TaskItem> examples, const PromptOptions& options,
                         const tokenizer::Tokenizer& tokenizer)
    : task_(task), examples_(examples), options_(options), encoder_(tokenizer) {
  if (options.chat) {
    chat_.emplace(*options.chat, tokenizer);
    beforeAnswer_ = textBeforeAnswers(*chat_);
  }
}

std::vector<TaskPrompts::Turn> TaskPrompts::examplesFor(const TaskItem& item) const {
  std::vector<Turn> turns;
  for (const TaskItem& example : examples_) {
    if (std::ssize(turns) == options_.fewShot) break;
    if (sameItem(example, item)) continue;
    const bool hasChoices = task_.kind == TaskKind::multipleChoice;
    turns.push_back({.question = task_.choicesAreQuestions ? rightChoice(example) : example.question,
                     .answer = hasChoices && !task_.choicesAreQuestions ? rightChoice(example) : example.target});
  }
  if (std::ssize(turns) < options_.fewShot) {
    throw Error(ErrorKind::usage, "task " + task_.name + " has " + std::to_string(turns.size()) +
                                      " examples for an item, and " + std::to_string(options_.fewShot) +
                                      " are asked for; name a file with more of them");
  }
  return turns;
}

std::string TaskPrompts::context(std::span<const Turn> examples, const std::string& question) const {
  if (!chat_) {
    std::string text = task_.description;
    for (const Turn& turn : examples) text += turn.question + task_.delimiter + turn.answer + task_.exampleSeparator;
    return text + question;
  }
  std::vector<ChatMessage> messages;
  std::string system = options_.system;
  if (!system.empty() && !task_.description.empty()) system += task_.exampleSeparator;
  system += task_.description;
  if (!system.empty()) messages.push_back({ChatRole::system, system});
  for (const Turn& turn : examples) {
    messages.push_back({ChatRole::user, turn.question});
    messages.push_back({ChatRole::assistant, turn.answer});
  }
  messages.push_back({ChatRole::user, question});
  return chat_->text(messages, true);
}

std::vector<PromptTexts> TaskPrompts::texts(const TaskItem& item) const {
  const std::vector<Turn> examples = examplesFor(item);
  const std::string& delimiter = chat_ ? beforeAnswer_ : task_.delimiter;
  std::vector<PromptTexts> texts;
  if (task_.choicesAreQuestions) {
    for (const std::string& choice : item.choices) {
      texts.push_back({.context = context(examples, choice), .continuation = delimiter + item.target});
    }
    return texts;
  }
  const std::string before = context(examples, item.question);
  if (task_.kind == TaskKind::generation) return {{.context = before, .continuation = {}}};
  if (task_.kind == TaskKind::cloze) {
    const bool isParted = item.target.starts_with(delimiter) || !chat_;
    return {{.context = before, .continuation = (isParted ? "" : delimiter) + item.target}};
  }
  for (const std::string& choice : item.choices) {
    texts.push_back({.context = before, .continuation = delimiter + choice});
  }
  return texts;
}

std::vector<std::int32_t> TaskPrompts::tokensOf(const std::string& text) {
  std::vector<tokenizer::TokenId> ids;
  const tokenizer::Tokenizer& tokens = encoder_.tokenizer();
  // A chat template writes its begin token itself, and its control tokens as text.
  const auto begin = options_.beginToken ? tokens.beginToken() : tokens.definition().templateBegin;
  if (!chat_ && begin) ids.push_back(*begin);
  encoder_.encode(text, ids, {.parseSpecial = chat_.has_value()});
  return {ids.begin(), ids.end()};
}

runtime::ContinuationRequest TaskPrompts::encode(const PromptTexts& texts, std::int64_t positions) {
  runtime::ContinuationRequest request;
  std::int64_t before = std::ssize(tokensOf(std::string(data::rightStripped(texts.context))));
  request.tokens = tokensOf(texts.context + texts.continuation);
  if (before == 0) {
    const tokenizer::Tokenizer& tokens = encoder_.tokenizer();
    const auto start = tokens.beginToken() ? tokens.beginToken() : tokens.endToken();
    if (!start) throw Error(ErrorKind::badData, "a context is empty, and the tokenizer has no token to begin with");
    const auto first = static_cast<std::int32_t>(*start);
    if (request.tokens.empty() || request.tokens.front() != first) request.tokens.insert(request.tokens.begin(), first);
    before = 1;
  }
  request.asked = std::ssize(request.tokens) - before;
  if (request.asked < 1) {
    throw Error(ErrorKind::badData, "the continuation '" + texts.continuation + "' has no token of its own");
  }
  if (request.asked > positions) {
    throw Error(ErrorKind::badData, "a continuation has " + std::to_string(request.asked) + " tokens, the model " +
                                        std::to_string(positions) + " positions");
  }
  if (const std::int64_t excess = std::ssize(request.tokens) - positions - 1; excess > 0) {
    request.tokens.erase(request.tokens.begin(), request.tokens.begin() + excess);
  }
  return request;
}

std::vector<std::int32_t> TaskPrompts::encodeContext(const std::string& context, std::int64_t most) {
  std::vector<std::int32_t> tokens = tokensOf(context);
  if (const std::int64_t excess = std::ssize(tokens) - most; excess > 0) {
    tokens.erase(tokens.begin(), tokens.begin() + excess);
  }
  return tokens;
}

std::vector<std::int32_t> TaskPrompts::stopTokens() const {
  std::vector<std::int32_t> stops;
  if (tokenizer().endToken()) stops.push_back(static_cast<std::int32_t>(*tokenizer().endToken()));
  if (chat_) stops.push_back(static_cast<std::int32_t>(chat_->answerEnd()));
  for (const std::string& stop : task_.stops) {
    if (const auto id = tokenizer().specialId(stop)) stops.push_back(static_cast<std::int32_t>(*id));
  }
  return stops;
}

}  // namespace tandem::train
