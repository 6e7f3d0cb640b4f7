#include "common/data/detail/csv.h"

#include <algorithm>

#include "common/base/error.h"

namespace tandem::data::detail {
namespace {

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> rows;
    while (at_ < text_.size()) {
      CsvRow row = this->row();
      if (row.fields.size() > 1 || !row.fields.front().empty()) rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  CsvRow row() {
    CsvRow row{.line = line_, .fields = {}};
    for (;;) {
      row.fields.push_back(field());
      if (at_ < text_.size() && text_[at_] == ',') {
        ++at_;
        continue;
      }
      endLine();
      return row;
    }
  }

  std::string field() { return at_ < text_.size() && text_[at_] == '"' ? quoted() : plain(); }

  std::string plain() {
    const std::size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    const std::string_view field = text_.substr(at_, end - at_);
    at_ = end;
    return std::string(field);
  }

  std::string quoted() {
    const std::int64_t begin = line_;
    std::string field;
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) fail(begin, "a quote is not closed");
      if (text_[at_] == '"') {
        if (at_ + 1 == text_.size() || text_[at_ + 1] != '"') break;
        ++at_;
      }
      line_ += text_[at_] == '\n' ? 1 : 0;
      field += text_[at_];
    }
    ++at_;
    if (at_ < text_.size() && std::string_view(",\r\n").find(text_[at_]) == std::string_view::npos) {
      fail(line_, "there is text behind a closing quote; a quote inside a field is written twice");
    }
    return field;
  }

  void endLine() {
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] == '\n') ++at_;
    ++line_;
  }

  [[noreturn]] void fail(std::int64_t line, const std::string& why) const {
    throw base::Error(base::ErrorKind::badData, "'" + origin_ + "', line " + std::to_string(line) + ": " + why);
  }

  std::string_view text_;
  const std::string& origin_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace

std::vector<CsvRow> parseCsv(std::string_view text, const std::string& origin) {
  return CsvReader(text, origin).rows();
}

}  // namespace tandem::data::detail
