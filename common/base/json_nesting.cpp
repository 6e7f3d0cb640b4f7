#include "common/base/json_nesting.h"

namespace tandem::base {

void refuseDeepNesting(std::string_view json, ErrorKind kind, const std::string& origin) {
  constexpr int deepest = 100;
  int depth = 0;
  bool insideText = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
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
