#include "apps/checkpoint-convert/result.h"

#include <filesystem>

#include "common/base/json.h"
#include "common/base/units.h"

namespace tandem::convert {

namespace fs = std::filesystem;

void report(const app::CommonOptions& common, const Json& document, const std::string& line) {
  app::printJson(common.json ? base::lenientJsonText(document) : line);
}

std::string describeWork(std::int64_t bytes, double seconds) {
  const auto rate = static_cast<std::int64_t>(static_cast<double>(bytes) / seconds);
  return base::formatBytes(bytes) + " in " + base::formatDuration(seconds) + ", " + base::formatBytes(rate) + "/s";
}

std::int64_t bytesAt(const std::string& path) {
  if (!fs::is_directory(path)) return static_cast<std::int64_t>(fs::file_size(path));
  std::int64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) bytes += static_cast<std::int64_t>(entry.file_size());
  }
  return bytes;
}

}  // namespace tandem::convert
