#pragma once
// Chat templates: how a conversation is written down for a model, and which part of it the model itself writes.
//
// A model's template is a program in Jinja. We do not run it: the forms below are known, each is recognised by what its
// text writes, and any other text is refused by name, so that a model never answers in a form that it has not learned.
//
//   tandem   <begin>System: s\nUser: u\nAssistant: a<end>User: ...     ours: needs nothing but an end token
//   chatml   <|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n      Qwen2, SmolLM2
//   llama3   <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>...
//   mistral  <begin> [INST] u [/INST] a<end>             the system's text stands before the first user's
//   zephyr   <|user|>\nu<end>\n<|assistant|>\na<end>\n
// <begin> and <end> are the tokenizer's own. What the model writes is each assistant's turn with the token that ends
// it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/encoder.h"

namespace tandem::tokenizer {

enum class ChatRole : std::uint8_t { system, user, assistant };

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
  bool operator==(const ChatMessage&) const = default;
};

const char* name(ChatRole role);

// What is wrong with the order of the turns, empty for nothing: a system's turn comes first or not at all, then user
// and assistant take turns, the user begins.
std::string whatIsWrongWithTurns(std::span<const ChatMessage> messages);

enum class ChatForm : std::uint8_t { tandem, chatml, llama3, mistral, zephyr };

class ChatTemplate {
 public:
  explicit ChatTemplate(ChatForm form, std::string defaultSystem = {});

  // "tandem", "chatml", "llama3", "mistral" or "zephyr"; throws Error of kind usage for another name.
  static ChatTemplate named(const std::string& name);
  // The template that a Jinja text writes; nothing for a form that is not known.
  static std::optional<ChatTemplate> recognised(std::string_view jinja);

  ChatForm form() const { return form_; }
  const char* name() const;
  // What the template says in the system's place when a conversation has no system's turn; ChatML only.
  const std::string& defaultSystem() const { return defaultSystem_; }
  // The template for other programs, and for our own files: recognised(jinja()) is this template.
  std::string jinja() const;

 private:
  ChatForm form_;
  std::string defaultSystem_;
};

// A conversation as tokens.
struct EncodedChat {
  std::vector<TokenId> tokens;
  std::vector<std::uint8_t> answers;  // for each token, 1 where the model is to write it
};

// Encodes conversations with one template and one tokenizer. What people wrote is text throughout: a message that reads
// like a control token is not one. For one thread.
class ChatEncoder {
 public:
  // Throws Error of kind badData when the tokenizer lacks a token that the template needs.
  ChatEncoder(ChatTemplate chat, Tokenizer tokenizer);

  // What the template makes of the messages, as text; answerFollows adds what invites the model to answer.
  std::string text(std::span<const ChatMessage> messages, bool answerFollows) const;
  // Its tokens. What the model writes is encoded apart from what stands before it, as it will be when it is generated.
  EncodedChat encode(std::span<const ChatMessage> messages, bool answerFollows);
  // The token that ends an answer.
  TokenId answerEnd() const { return answerEnd_; }
  const ChatTemplate& chatTemplate() const { return template_; }
  const Tokenizer& tokenizer() const { return encoder_.tokenizer(); }

 private:
  struct Piece;
  class Renderer;

  std::vector<Piece> render(std::span<const ChatMessage> messages, bool answerFollows) const;
  TokenId need(std::string_view token) const;
  std::string_view textOf(std::optional<TokenId> token) const;

  ChatTemplate template_;
  Encoder encoder_;
  TokenId answerEnd_ = 0;
};

}  // namespace tandem::tokenizer
