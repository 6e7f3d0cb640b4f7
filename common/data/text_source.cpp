#include "common/data/text_source.h"

#include <glob.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"

namespace tandem::data {
namespace {

using base::Error;
using base::ErrorKind;
namespace fs = std::filesystem;

constexpr const char* knownKinds = ".txt, .jsonl, and each of them with .gz or .zst behind it";

// The kind of a file by its name; empty when it is none of ours.
std::optional<TextFile> classify(const fs::path& path) {
  std::string name = path.filename().string();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  TextFile file;
  file.path = path;
  if (name.ends_with(".gz")) {
    file.compression = Compression::gzip;
    name.resize(name.size() - 3);
  } else if (name.ends_with(".zst")) {
    file.compression = Compression::zstd;
    name.resize(name.size() - 4);
  }
  if (name.ends_with(".jsonl")) {
    file.format = TextFormat::jsonLines;
  } else if (!name.ends_with(".txt")) {
    return std::nullopt;
  }
  return file;
}

void add(std::vector<TextFile>& files, TextFile file) {
  file.bytes = base::File::openForReading(file.path).size();
  files.push_back(std::move(file));
}

bool isHidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

void addFolder(std::vector<TextFile>& files, const fs::path& folder) {
  std::vector<TextFile> found;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
      if (isHidden(entry->path())) {
        if (entry->is_directory()) entry.disable_recursion_pending();
        continue;
      }
      const std::optional<TextFile> file = classify(entry->path());
      if (file && entry->is_regular_file()) found.push_back(*file);
    }
  } catch (const fs::filesystem_error& failure) {
    throw Error(ErrorKind::file, "cannot list the folder '" + folder.string() + "': " + failure.code().message());
  }
  if (found.empty()) {
    throw Error(ErrorKind::badData,
                "the folder '" + folder.string() + "' holds no text: no file whose name ends with " + knownKinds);
  }
  std::ranges::sort(found, {}, &TextFile::path);
  for (TextFile& file : found) add(files, std::move(file));
}

void addPath(std::vector<TextFile>& files, const fs::path& path) {
  if (fs::is_directory(path)) {
    addFolder(files, path);
    return;
  }
  std::optional<TextFile> file = classify(path);
  if (!file) {
    throw Error(ErrorKind::usage, "the kind of '" + path.string() + "' is not known by its name; text is read from " +
                                      std::string(knownKinds));
  }
  add(files, std::move(*file));
}

std::vector<fs::path> expandPattern(const std::string& pattern) {
  glob_t matches{};
  const int result = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &matches);
  std::vector<fs::path> paths(matches.gl_pathv, matches.gl_pathv + (result == 0 ? matches.gl_pathc : 0));
  ::globfree(&matches);
  if (result != 0 && result != GLOB_NOMATCH) {
    throw Error(ErrorKind::file, "cannot look for files that match '" + pattern + "'");
  }
  return paths;
}

// Compressed text is taken for four times its size when it is shared out, about what both formats reach on text.
std::int64_t weightOf(const TextFile& file) { return file.bytes * (file.compression == Compression::none ? 1 : 4); }

bool canBeCut(const TextFile& file, const TextOptions& options) {
  if (file.compression != Compression::none) return false;
  return file.format == TextFormat::jsonLines || options.documentSeparator || options.mayCutDocuments;
}

// floor(total * rank / ranks) without overflow.
std::int64_t partBegin(std::int64_t total, int rank, int ranks) {
  return total / ranks * rank + total % ranks * rank / ranks;
}

}  // namespace

std::vector<TextFile> findTextFiles(std::span<const std::string> arguments) {
  std::vector<TextFile> files;
  for (const std::string& argument : arguments) {
    std::error_code failure;
    if (fs::exists(argument, failure)) {
      addPath(files, argument);
      continue;
    }
    const bool isPattern = argument.find_first_of("*?[") != std::string::npos;
    const std::vector<fs::path> paths = isPattern ? expandPattern(argument) : std::vector<fs::path>();
    if (paths.empty()) {
      throw Error(ErrorKind::usage,
                  isPattern ? "no file matches '" + argument + "'" : "the input '" + argument + "' does not exist");
    }
    for (const fs::path& path : paths) addPath(files, path);
  }
  return files;
}

std::vector<TextFile> findTextFiles(comm::Communicator& communicator, std::span<const std::string> arguments) {
  std::vector<TextFile> files;
  std::string text;
  comm::agreeOn(communicator, [&] {
    if (communicator.rank() != 0) return;
    nlohmann::json list = nlohmann::json::array();
    for (const TextFile& file : findTextFiles(arguments)) {
      // Names of files are bytes and need not be UTF-8, so they travel as numbers.
      const std::string path = file.path.string();
      list.push_back({std::vector<unsigned char>(path.begin(), path.end()), file.bytes});
    }
    text = base::jsonText(list);
  });
  for (const nlohmann::json& entry : base::parseJson(comm::broadcastText(communicator, text, 0))) {
    const auto path = entry.at(0).get<std::vector<unsigned char>>();
    TextFile file = classify(std::string(path.begin(), path.end())).value();
    file.bytes = entry.at(1).get<std::int64_t>();
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<FileRange> shareOut(std::span<const TextFile> files, const TextOptions& options, int rank, int ranks) {
  std::int64_t total = 0;
  for (const TextFile& file : files) total += weightOf(file);
  const std::int64_t begin = partBegin(total, rank, ranks);
  const std::int64_t end = partBegin(total, rank + 1, ranks);
  const bool isLast = rank == ranks - 1;
  std::vector<FileRange> ranges;
  std::int64_t at = 0;  // where the file lies in the sum of all
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::int64_t weight = weightOf(files[f]);
    const auto file = static_cast<std::int64_t>(f);
    if (canBeCut(files[f], options)) {
      const std::int64_t from = std::clamp<std::int64_t>(begin - at, 0, weight);
      const std::int64_t to = std::clamp<std::int64_t>(end - at, 0, weight);
      if (from < to) ranges.push_back({file, from, to});
    } else {
      const std::int64_t middle = at + weight / 2;
      if (middle >= begin && (middle < end || isLast)) ranges.push_back({file, 0, files[f].bytes});
    }
    at += weight;
  }
  return ranges;
}

}  // namespace tandem::data
