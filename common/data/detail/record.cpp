#include "common/data/detail/record.h"

#include <algorithm>
#include <charconv>

#include "common/base/error.h"
#include "common/base/json.h"

namespace tandem::data::detail {

using nlohmann::json;

Record Record::parse(std::string_view text, const std::string& place) {
  base::refuseDeepNesting(text, base::ErrorKind::badData, place);
  try {
    return Record(base::parseJson(text), place);
  } catch (const json::exception& error) {
    throw base::Error(base::ErrorKind::badData, place + ": no JSON: " + base::jsonProblem(error));
  }
}

Record::Record(json value, std::string place) : value_(std::move(value)), place_(std::move(place)) {
  if (!value_.is_object()) fail("no JSON object");
}

void Record::fail(const std::string& why) const { throw base::Error(base::ErrorKind::badData, place_ + ": " + why); }

const json& Record::at(const std::string& field) const {
  const auto found = value_.find(field);
  if (found == value_.end()) fail("there is no \"" + field + "\"");
  return *found;
}

std::string Record::text(const std::string& field) const {
  const json& value = at(field);
  if (!value.is_string()) fail("\"" + field + "\" is no text");
  return value.get<std::string>();
}

std::int64_t Record::number(const std::string& field) const {
  const json& value = at(field);
  if (value.is_number_integer()) return value.get<std::int64_t>();
  std::int64_t number = 0;
  if (value.is_string()) {
    const std::string& digits = value.get_ref<const std::string&>();
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (failure == std::errc() && end == digits.data() + digits.size()) return number;
  }
  fail("\"" + field + "\" is no whole number");
}

bool Record::flag(const std::string& field) const {
  const json& value = at(field);
  if (!value.is_boolean()) fail("\"" + field + "\" is neither true nor false");
  return value.get<bool>();
}

std::vector<std::string> Record::texts(const std::string& field) const {
  const json& value = at(field);
  const bool areTexts = value.is_array() && std::ranges::all_of(value, [](const json& one) { return one.is_string(); });
  if (!areTexts) fail("\"" + field + "\" is no list of texts");
  return value.get<std::vector<std::string>>();
}

Record Record::object(const std::string& field) const { return {at(field), place_ + ", \"" + field + "\""}; }

std::vector<Record> Record::objects(const std::string& field) const {
  const json& value = at(field);
  if (!value.is_array()) fail("\"" + field + "\" is no list");
  std::vector<Record> records;
  for (std::size_t i = 0; i < value.size(); ++i) {
    records.emplace_back(value[i], place_ + ", \"" + field + "\" " + std::to_string(i + 1));
  }
  return records;
}

void Record::demandOnly(std::initializer_list<std::string_view> names) const {
  for (const auto& [field, value] : value_.items()) {
    if (std::ranges::find(names, field) != names.end()) continue;
    std::string known;
    for (const std::string_view name : names) known += (known.empty() ? "" : ", ") + std::string(name);
    fail("\"" + field + "\" is unknown; there may be " + known);
  }
}

}  // namespace tandem::data::detail
