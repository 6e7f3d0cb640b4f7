#include "apps/evaluate/conversation.h"

#include <algorithm>

#include "apps/evaluate/text_stream.h"
#include "common/base/error.h"

namespace tandem::evaluate {

using tokenizer::ChatRole;

Conversation::Conversation(runtime::Generator& generator, tokenizer::ChatEncoder& chat, std::string system,
                           std::int64_t capacity)
    : generator_(generator), chat_(chat), system_(std::move(system)), capacity_(capacity) {
  begin();
}

void Conversation::begin() {
  messages_.clear();
  if (!system_.empty()) messages_.push_back({ChatRole::system, system_});
}

// The oldest question and answer go until there is room for an answer, up to half of the capacity.
std::vector<std::int32_t> Conversation::fitPrompt(Answer& answer, std::int64_t maxTokens) {
  const std::int64_t room = std::min(maxTokens, capacity_ / 2);
  const std::ptrdiff_t first = system_.empty() ? 0 : 1;
  for (;;) {
    const std::vector<tokenizer::TokenId> tokens = chat_.encode(messages_, true).tokens;
    if (std::ssize(tokens) + room <= capacity_) return {tokens.begin(), tokens.end()};
    if (std::ssize(messages_) <= first + 1) {
      throw base::Error(base::ErrorKind::usage, "the question has " + std::to_string(tokens.size()) +
                                                    " tokens with all that belongs to it; of the model's " +
                                                    std::to_string(capacity_) + ", " + std::to_string(room) +
                                                    " are for the answer");
    }
    messages_.erase(messages_.begin() + first, messages_.begin() + first + 2);
    answer.droppedTurns += 2;
  }
}

Conversation::Answer Conversation::ask(const std::string& question, const runtime::SamplingOptions& sampling,
                                       std::int64_t maxTokens, const std::function<void(const std::string&)>& show,
                                       const std::function<bool()>& isStopped) {
  const std::vector<tokenizer::ChatMessage> before = messages_;
  messages_.push_back({ChatRole::user, question});
  Answer answer;
  runtime::GenerationRequest request{
      .maxTokens = maxTokens, .stopTokens = {static_cast<std::int32_t>(chat_.answerEnd())}, .sequence = asked_++};
  try {
    request.prompt = fitPrompt(answer, maxTokens);
  } catch (...) {
    messages_ = before;
    throw;
  }
  TextStream text({}, TextStream::Beginning::withoutBlanks);
  const auto onToken = [&](std::int64_t, std::int32_t token) {
    if (token < chat_.tokenizer().vocabularySize()) {
      text.append(chat_.tokenizer().tokenBytes(static_cast<tokenizer::TokenId>(token)));
    }
    show(text.takeReady());
    return !isStopped();
  };
  answer.stopReason = generator_.run({request}, sampling, onToken).front().stopReason;
  show(text.takeRest());
  answer.text = text.text();
  messages_.push_back({ChatRole::assistant, answer.text});
  return answer;
}

}  // namespace tandem::evaluate
