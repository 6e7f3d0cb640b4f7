#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tandem::data::detail {

// Calls work(line, place) for every line that has more than blanks; place is "'path', line N", for messages.
template <class Work>
void forEachLine(std::string_view text, const std::filesystem::path& path, const Work& work) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    work(line, "'" + path.string() + "', line " + std::to_string(number));
  }
}

}  // namespace tandem::data::detail
