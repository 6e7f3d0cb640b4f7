#include "common/tokenizer/detail/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "common/base/error.h"
#include "common/tokenizer/detail/character_class.h"

namespace tandem::tokenizer::detail {
namespace {

using Points = std::vector<utf8proc_int32_t>;

void appendDecomposed(std::uint32_t codePoint, Points& points) {
  utf8proc_int32_t parts[32];
  int lastBoundClass = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(codePoint), parts, 32,
                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &lastBoundClass);
  TANDEM_ASSERT(count >= 0 && count <= 32, "utf8proc could not decompose a code point");
  points.insert(points.end(), parts, parts + count);
}

utf8proc_propval_t combiningClass(utf8proc_int32_t point) { return utf8proc_get_property(point)->combining_class; }

// utf8proc's own reordering is an insertion sort, quadratic in a long run of marks.
void orderMarks(Points& points) {
  for (auto begin = points.begin(); begin != points.end();) {
    if (combiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, points.end(), [](utf8proc_int32_t p) { return combiningClass(p) == 0; });
    std::stable_sort(begin, end,
                     [](utf8proc_int32_t a, utf8proc_int32_t b) { return combiningClass(a) < combiningClass(b); });
    begin = end;
  }
}

// Composes the decomposed points, appends them to the result as UTF-8, and empties the list.
void flush(Points& points, std::string& result) {
  if (points.empty()) return;
  orderMarks(points);
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  TANDEM_ASSERT(count >= 0, "utf8proc could not compose a text");
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    utf8proc_uint8_t bytes[4];
    const auto length = utf8proc_encode_char(points[static_cast<std::size_t>(i)], bytes);
    result.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
  }
  points.clear();
}

}  // namespace

bool isPlainlyNormal(std::string_view text) {
  // U+0300 and above begin with a byte 0xCC or above; an ill-formed such byte only costs the longer way.
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

std::string normalizeToC(std::string_view text) {
  const CharacterTable& table = CharacterTable::instance();
  std::string result;
  result.reserve(text.size());
  Points pending;  // since the last character that nothing behind can change
  const char* end = text.data() + text.size();
  for (const char* place = text.data(); place != end;) {
    const Unit unit = readUnit(table, place, end);
    // Characters below U+0300 are starters that join with nothing before them.
    if (unit.codePoint == noCodePoint || unit.codePoint < 0x300) flush(pending, result);
    if (unit.codePoint == noCodePoint) {
      result.push_back(*place);
    } else {
      appendDecomposed(unit.codePoint, pending);
    }
    place += unit.length;
  }
  flush(pending, result);
  return result;
}

}  // namespace tandem::tokenizer::detail
