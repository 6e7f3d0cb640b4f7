// Records of .jsonl files, one by one against another parser of JSON, and as a file.

#include <nlohmann/json.hpp>

#include "common/data/block_reader.h"
#include "common/data/detail/json_text.h"
#include "common/data/detail/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace tandem::fuzz {
namespace {

// The other parser refuses numbers that no double holds and bytes that are no UTF-8, and passes over a byte order mark,
// and what stands behind a zero byte.
void compare(std::string_view line) {
  std::string text;
  const bool taken = data::detail::extractText(line, "text", text) == nullptr;
  const bool differ = line.starts_with("\xef\xbb\xbf") || line.find('\0') != std::string_view::npos;
  if (differ || data::detail::countInvalidUtf8(line) > 0) return;
  try {
    const auto other = nlohmann::json::parse(line.begin(), line.end());
    const bool has = other.is_object() && other.contains("text") && other["text"].is_string();
    const bool tooDeep = std::ranges::count_if(line, [](char c) { return c == '[' || c == '{'; }) > 512;
    demand(taken == has || tooDeep, "a record is taken just when it is an object with a string under the key");
    demand(!taken || text == other["text"].get_ref<const std::string&>(), "the text of a record is what it says");
  } catch (const nlohmann::json::out_of_range&) {
  } catch (const nlohmann::json::parse_error&) {
    demand(!taken, "what is no JSON is not taken");
  }
}

void readAsFile(std::string_view bytes, bool skipsBadRecords) {
  const MemoryFile memory(bytes);
  const data::TextFile file{memory.path(), data::TextFormat::jsonLines, data::Compression::none, std::ssize(bytes)};
  const data::TextOptions options{.skipBadRecords = skipsBadRecords};
  accepts([&] {
    data::BlockReader reader(std::span(&file, 1), {{0, 0, file.bytes}}, options);
    while (const auto block = reader.next()) {
      data::forEachDocument(*block, file, options, [](const data::Document& document) {
        demand(!document.text.empty(), "documents have text");
      });
    }
  });
}

}  // namespace

void fuzzOne(std::string_view bytes) {
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    compare(line);
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  readAsFile(bytes, false);
  readAsFile(bytes, true);
}

}  // namespace tandem::fuzz
