#pragma once
// The texts of a task as a model sees them: description, examples with their answers, the question; plain, or as a
// conversation written by a chat template. And their tokens, in the manner of lm-evaluation-harness 0.4: a context and
// what goes on from it are encoded together, after white space at the context's end has become part of the
// continuation; of what is too long for the model the end is kept.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/data/task.h"
#include "common/runtime/continuation_scorer.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/encoder.h"

namespace tandem::train {

struct PromptOptions {
  std::int64_t fewShot = 0;                          // examples before each question
  std::optional<tokenizer::ChatTemplate> chat = {};  // examples are turns, the answer is the assistant's
  std::string system;                                // what the system says first; with chat only
  bool beginToken = false;  // contexts begin with the begin token even where the tokenizer's file does not ask for it
};

struct PromptTexts {
  std::string context;
  std::string continuation;  // empty for a text that is to be written
};

class TaskPrompts {
 public:
  // Examples are the first of `examples` that are not the item itself. Throws Error of kind usage when there are not
  // enough of them, of kind badData when the tokenizer lacks a token that is needed.
  TaskPrompts(const data::Task& task, std::span<const data::TaskItem> examples, const PromptOptions& options,
              const tokenizer::Tokenizer& tokenizer);

  // One for each choice, or the only one.
  std::vector<PromptTexts> texts(const data::TaskItem& item) const;
  // Of a model with so many positions. Throws Error of kind badData for a continuation that has no token of its own or
  // more than the model has positions.
  runtime::ContinuationRequest encode(const PromptTexts& texts, std::int64_t positions);
  // The last `most` tokens of a context.
  std::vector<std::int32_t> encodeContext(const std::string& context, std::int64_t most);

  // Tokens that end an answer: the end of a document or of a turn, and those that the task names.
  std::vector<std::int32_t> stopTokens() const;
  const tokenizer::Tokenizer& tokenizer() const { return encoder_.tokenizer(); }

 private:
  struct Turn {
    std::string question;
    std::string answer;
  };

  std::string context(std::span<const Turn> examples, const std::string& question) const;
  std::vector<Turn> examplesFor(const data::TaskItem& item) const;
  std::vector<std::int32_t> tokensOf(const std::string& text);

  const data::Task& task_;
  std::span<const data::TaskItem> examples_;
  const PromptOptions& options_;
  tokenizer::Encoder encoder_;
  std::optional<tokenizer::ChatEncoder> chat_;
  std::string beforeAnswer_;  // what the chat template puts in front of an answer
};

}  // namespace tandem::train
