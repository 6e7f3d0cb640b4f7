#pragma once
// A JSON object that strangers wrote, read field by field; what is wrong with it is said with the place where it
// stands.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::data::detail {

class Record {
 public:
  // `place` begins messages: "'task.jsonl', line 3". All throw Error of kind badData.
  static Record parse(std::string_view text, const std::string& place);
  Record(nlohmann::json value, std::string place);

  bool has(const std::string& field) const { return value_.contains(field); }
  const nlohmann::json& at(const std::string& field) const;
  std::string text(const std::string& field) const;
  // A whole number, or the text of one.
  std::int64_t number(const std::string& field) const;
  bool flag(const std::string& field) const;
  std::vector<std::string> texts(const std::string& field) const;
  Record object(const std::string& field) const;
  std::vector<Record> objects(const std::string& field) const;

  // Fields that have another name are refused.
  void demandOnly(std::initializer_list<std::string_view> names) const;
  const nlohmann::json& value() const { return value_; }
  const std::string& place() const { return place_; }
  [[noreturn]] void fail(const std::string& why) const;

 private:
  nlohmann::json value_;
  std::string place_;
};

}  // namespace tandem::data::detail
