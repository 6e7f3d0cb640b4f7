#pragma once
// Tables of text with commas between fields, as RFC 4180 has them: a field in double quotes may hold commas, line ends
// and, doubled, quotes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::data::detail {

struct CsvRow {
  std::int64_t line = 0;  // where it begins, counted from 1
  std::vector<std::string> fields;
};

// Lines without anything are left out. Throws Error of kind badData, naming `origin` and the line: a quote that is not
// closed, or text behind one that is.
std::vector<CsvRow> parseCsv(std::string_view text, const std::string& origin);

}  // namespace tandem::data::detail
