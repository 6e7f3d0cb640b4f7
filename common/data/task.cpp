#include "common/data/task.h"

#include <algorithm>
#include <optional>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/data/detail/lines.h"
#include "common/data/detail/task_formats.h"

namespace tandem::data {
namespace {

using base::Error;
using base::ErrorKind;
using detail::LineFormat;
using detail::Record;

const LineFormat& recognise(const Record& record) {
  for (const LineFormat& format : detail::lineFormats()) {
    if (std::ranges::all_of(format.fields, [&](const std::string& field) { return record.has(field); })) return format;
  }
  record.fail("the fields are those of no task that is known: HellaSwag, ARC, PIQA, WinoGrande, GSM8K or LAMBADA");
}

// PIQA's labels, a line each.
std::vector<std::string> readLabels(const std::filesystem::path& path) {
  const std::filesystem::path labels = path.parent_path() / (path.stem().string() + "-labels.lst");
  if (!std::filesystem::exists(labels)) return {};
  std::vector<std::string> lines;
  detail::forEachLine(base::readFile(labels), labels,
                      [&](std::string_view line, const std::string&) { lines.emplace_back(line); });
  return lines;
}

// Puts the label of a record without one in its place.
Record labelled(const Record& record, const std::vector<std::string>& labels, std::size_t number,
                const std::filesystem::path& path) {
  if (number >= labels.size()) {
    record.fail("there is no \"label\", and in '" + path.stem().string() + "-labels.lst' beside the file no line " +
                std::to_string(number + 1));
  }
  nlohmann::json with = record.value();
  with["label"] = labels[number];
  return {std::move(with), record.place()};
}

std::string nameOf(const LineFormat& format, const std::filesystem::path& path) {
  if (format.settings.name != "arc") return format.settings.name;
  std::string stem = path.stem().string();
  std::ranges::transform(stem, stem.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  for (const char* part : {"easy", "challenge"}) {
    if (stem.find(part) != std::string::npos) return std::string("arc_") + part;
  }
  return "arc";
}

Task parseLines(std::string_view bytes, const std::filesystem::path& path) {
  Task task;
  const LineFormat* format = nullptr;
  std::optional<std::vector<std::string>> labels;
  detail::forEachLine(bytes, path, [&](std::string_view line, const std::string& place) {
    Record record = Record::parse(line, place);
    if (format == nullptr) {
      format = &recognise(record);
      task = format->settings;
      task.name = nameOf(*format, path);
    }
    if (task.name == "piqa" && !record.has("label")) {
      if (!labels) labels = readLabels(path);
      record = labelled(record, *labels, task.items.size(), path);
    }
    task.items.push_back(format->item(record));
  });
  return task;
}

}  // namespace

Task parseTask(std::string_view bytes, const std::filesystem::path& name) {
  const std::string extension = name.extension().string();
  Task task;
  if (extension == ".jsonl") {
    task = parseLines(bytes, name);
  } else if (extension == ".csv") {
    task = detail::parseMmlu(bytes, name);
  } else if (extension == ".json") {
    task = detail::parseTaskFile(bytes, name);
  } else {
    throw Error(ErrorKind::usage,
                "'" + name.string() + "' is no task: .jsonl and .csv files are public ones, .json files one's own");
  }
  if (task.items.empty()) throw Error(ErrorKind::badData, "'" + name.string() + "' has no item");
  task.file = name.string();
  return task;
}

Task readTask(const std::filesystem::path& path) { return parseTask(base::readFile(path), path); }

}  // namespace tandem::data
