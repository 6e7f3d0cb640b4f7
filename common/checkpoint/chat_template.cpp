#include "common/checkpoint/chat_template.h"

#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace tandem::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* templateName = "chat_template.jinja";

json parseObject(const std::string& text) {
  json object = base::parseJsonOrDiscard(text);
  return object.is_object() ? object : json::object();
}

std::string textUnder(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string chatTemplateOf(const Metadata& metadata) {
  const json companions = parseObject(metadata.companions);
  const std::string own = textUnder(companions, templateName);
  return !own.empty() ? own : textUnder(parseObject(textUnder(companions, "tokenizer_config.json")), "chat_template");
}

std::string withChatTemplate(const std::string& companions, const std::string& jinja) {
  if (jinja.empty()) return companions;
  json object = parseObject(companions);
  object[templateName] = jinja;
  return base::jsonText(object);
}

}  // namespace tandem::checkpoint
