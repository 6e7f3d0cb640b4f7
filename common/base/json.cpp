#include "common/base/json.h"

#include <algorithm>

namespace tandem::base {

using nlohmann::json;
using nlohmann::ordered_json;

json parseJson(std::string_view text) { return json::parse(text.begin(), text.end()); }

ordered_json parseOrderedJson(std::string_view text) { return ordered_json::parse(text.begin(), text.end()); }

json parseJsonOrDiscard(std::string_view text) { return json::parse(text.begin(), text.end(), nullptr, false); }

ordered_json parseOrderedJsonOrDiscard(std::string_view text) {
  return ordered_json::parse(text.begin(), text.end(), nullptr, false);
}

std::string jsonText(const json& value, int indent) { return value.dump(indent); }

std::string jsonText(const ordered_json& value, int indent) { return value.dump(indent); }

std::string lenientJsonText(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string lenientJsonText(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string jsonProblem(const json::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
  const std::string what = error.what();
  return what.substr(std::min(what.find("] ") + 2, what.size()));
}

void refuseDeepNesting(std::string_view text, ErrorKind kind, const std::string& origin) {
  constexpr int deepest = 100;
  int depth = 0;
  bool insideText = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (insideText) {
      if (c == '\\') ++i;
      insideText = c != '"';
    } else if (c == '"') {
      insideText = true;
    } else if (c == '[' || c == '{') {
      if (++depth > deepest) {
        throw Error(kind, origin + ": the JSON is nested more than " + std::to_string(deepest) + " deep");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace tandem::base
