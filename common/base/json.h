#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/error.h"

namespace tandem::base {

// The library's parser and writer are compiled here once: they are most of the time to compile a file that uses them.

// The value of a JSON text. Throws nlohmann::json::parse_error; jsonProblem has its words.
[[nodiscard]] nlohmann::json parseJson(std::string_view text);
// The same with the members of objects in the text's order.
[[nodiscard]] nlohmann::ordered_json parseOrderedJson(std::string_view text);
// The same of a text that may be no JSON: the value's is_discarded() is then true, and it is neither an object nor an
// array.
[[nodiscard]] nlohmann::json parseJsonOrDiscard(std::string_view text);
[[nodiscard]] nlohmann::ordered_json parseOrderedJsonOrDiscard(std::string_view text);

// One line of JSON; with `indent` spaces a level, many. Throws nlohmann::json::type_error for a string that is no
// UTF-8.
[[nodiscard]] std::string jsonText(const nlohmann::json& value, int indent = -1);
[[nodiscard]] std::string jsonText(const nlohmann::ordered_json& value, int indent = -1);
// One line of JSON, in which U+FFFD stands for bytes that are no UTF-8.
[[nodiscard]] std::string lenientJsonText(const nlohmann::json& value);
[[nodiscard]] std::string lenientJsonText(const nlohmann::ordered_json& value);

// What is wrong with a text, "parse error at line 1, column 5: ...", without the library's own number of it.
[[nodiscard]] std::string jsonProblem(const nlohmann::json::exception& error);

// Throws Error of `kind`, beginning with `origin`, for JSON nested more than a hundred deep. Reading JSON needs no
// recursion, but copying, comparing and printing a value do: what strangers wrote must not exhaust the stack there.
void refuseDeepNesting(std::string_view text, ErrorKind kind, const std::string& origin);

}  // namespace tandem::base
