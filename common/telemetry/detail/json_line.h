#pragma once
// An object of JSON on one line, written from left to right. A step's record is written while all ranks wait for the
// next step: by this in a few microseconds, by way of a document of nlohmann's in tens.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::telemetry::detail {

class JsonLine {
 public:
  // Names are written as they are: ours have nothing to escape.
  void add(std::string_view name, std::int64_t value);
  void add(std::string_view name, bool value);
  // Reads back exactly; JSON has no infinities, so what is no finite number is null.
  void add(std::string_view name, double value);
  void add(std::string_view name, const std::optional<double>& value);
  // Six digits are more than anything measured is worth.
  void addRounded(std::string_view name, double value);
  void addText(std::string_view name, const std::string& value);

  // What is added in between becomes values of a list, which have no names, or of an object.
  void beginList(std::string_view name);
  void addRounded(double value);
  void endList() { close(']'); }
  void beginObject(std::string_view name);
  void endObject() { close('}'); }

  // The line without its end. Nothing may be added any more.
  std::string take();

 private:
  void key(std::string_view name);
  void separate();
  void open(char bracket);
  void close(char bracket);
  void write(double value, int digits);

  std::string text_ = "{";
  bool isFirst_ = true;
};

// A text in quotes, with what JSON does not take as it is escaped.
std::string quoted(const std::string& text);

}  // namespace tandem::telemetry::detail
