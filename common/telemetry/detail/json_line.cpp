#include "common/telemetry/detail/json_line.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"

namespace tandem::telemetry::detail {
namespace {

constexpr int exactly = 0;  // as many digits as it takes
constexpr int roundedDigits = 6;

}  // namespace

void JsonLine::add(std::string_view name, std::int64_t value) {
  key(name);
  text_ += std::to_string(value);
}

void JsonLine::add(std::string_view name, bool value) {
  key(name);
  text_ += value ? "true" : "false";
}

void JsonLine::add(std::string_view name, double value) {
  key(name);
  write(value, exactly);
}

void JsonLine::add(std::string_view name, const std::optional<double>& value) {
  add(name, value.value_or(std::numeric_limits<double>::quiet_NaN()));
}

void JsonLine::addRounded(std::string_view name, double value) {
  key(name);
  write(value, roundedDigits);
}

void JsonLine::addText(std::string_view name, const std::string& value) {
  key(name);
  text_ += quoted(value);
}

void JsonLine::beginList(std::string_view name) {
  key(name);
  open('[');
}

void JsonLine::addRounded(double value) {
  separate();
  write(value, roundedDigits);
}

void JsonLine::beginObject(std::string_view name) {
  key(name);
  open('{');
}

std::string JsonLine::take() {
  close('}');
  return std::move(text_);
}

void JsonLine::key(std::string_view name) {
  separate();
  text_ += '"';
  text_ += name;
  text_ += "\":";
}

void JsonLine::separate() {
  if (!isFirst_) text_ += ',';
  isFirst_ = false;
}

void JsonLine::open(char bracket) {
  text_ += bracket;
  isFirst_ = true;
}

void JsonLine::close(char bracket) {
  text_ += bracket;
  isFirst_ = false;
}

void JsonLine::write(double value, int digits) {
  if (!std::isfinite(value)) {
    text_ += "null";
    return;
  }
  char number[32];
  const std::to_chars_result end =
      digits == exactly ? std::to_chars(number, number + sizeof number, value)
                        : std::to_chars(number, number + sizeof number, value, std::chars_format::general, digits);
  text_.append(number, end.ptr);
}

std::string quoted(const std::string& text) { return base::jsonText(nlohmann::json(text)); }

}  // namespace tandem::telemetry::detail
