#include "apps/shared/chat.h"

#include "common/base/error.h"

namespace tandem::app {
namespace {

constexpr const char* names = "tandem, chatml, llama3, mistral or zephyr";

}  // namespace

tokenizer::ChatTemplate chooseChatTemplate(const std::string& name, const std::string& jinja,
                                           const std::string& origin) {
  if (!name.empty()) return tokenizer::ChatTemplate::named(name);
  if (jinja.empty()) {
    throw base::Error(base::ErrorKind::badData, "'" + origin +
                                                    "' has no chat template: say by --chat-template how a "
                                                    "conversation is written down (" +
                                                    names + ")");
  }
  if (const auto known = tokenizer::ChatTemplate::recognised(jinja)) return *known;
  throw base::Error(base::ErrorKind::badData, "the chat template of '" + origin +
                                                  "' is in none of the forms that are known; if one of them is meant, "
                                                  "name it by --chat-template (" +
                                                  names + ")");
}

}  // namespace tandem::app
