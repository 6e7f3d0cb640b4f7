#pragma once
// A conversation with a model: what was said so far, and the next answer.

#include <functional>
#include <string>
#include <vector>

#include "common/runtime/generator.h"
#include "common/tokenizer/chat_template.h"

namespace tandem::evaluate {

class Conversation {
 public:
  // `capacity`: tokens that the generator holds, prompt and answer together.
  Conversation(runtime::Generator& generator, tokenizer::ChatEncoder& chat, std::string system, std::int64_t capacity);

  struct Answer {
    std::string text;
    std::string stopReason;         // as Generation has it
    std::int64_t droppedTurns = 0;  // of the oldest, which had no room any more
  };
  // Shows the answer while it is written; `isStopped` is asked after each token. An answer that was stopped stays in
  // the conversation as far as it got. Throws Error of kind usage for a question that has no room even alone; the
  // conversation is then as before.
  Answer ask(const std::string& question, const runtime::SamplingOptions& sampling, std::int64_t maxTokens,
             const std::function<void(const std::string&)>& show, const std::function<bool()>& isStopped);

  // Forgets all but the system's text.
  void begin();

 private:
  std::vector<std::int32_t> fitPrompt(Answer& answer, std::int64_t maxTokens);

  runtime::Generator& generator_;
  tokenizer::ChatEncoder& chat_;
  std::string system_;
  std::int64_t capacity_;
  std::vector<tokenizer::ChatMessage> messages_;
  std::uint64_t asked_ = 0;
};

}  // namespace tandem::evaluate
