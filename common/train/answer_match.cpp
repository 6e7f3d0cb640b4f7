#include "common/train/answer_match.h"

#include <algorithm>

#include "common/data/python_text.h"

namespace tandem::train {
namespace {

using data::AnswerForm;

constexpr std::string_view invalid = "[invalid]";  // what is taken out of a text that has no answer
constexpr std::string_view digits = "0123456789";
constexpr std::string_view numeric = "0123456789.,$";

// What (-?[$0-9.,]{2,})|(-?[0-9]+) finds last: two or more characters of a number or a price, or one digit.
std::string lastNumber(std::string_view text) {
  std::string_view last = invalid;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t sign = text[at] == '-' ? 1 : 0;
    const std::size_t end = std::min(text.find_first_not_of(numeric, at + sign), text.size());
    const std::size_t length = end - at - sign;
    const bool isNumber = length >= 2 || (length == 1 && digits.find(text[at + sign]) != std::string_view::npos);
    if (isNumber) last = text.substr(at, end - at);
    at = isNumber ? end : at + 1;
  }
  return std::string(last);
}

// What #### (-?[0-9.,]+) finds first.
std::string markedNumber(std::string_view text) {
  constexpr std::string_view mark = "#### ";
  for (std::size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + 1)) {
    const std::string_view rest = text.substr(at + mark.size());
    const std::size_t sign = rest.starts_with('-') ? 1 : 0;
    const std::size_t end = std::min(rest.find_first_not_of("0123456789.,", sign), rest.size());
    if (end > sign) return std::string(rest.substr(0, end));
  }
  return std::string(invalid);
}

// Commas and dollars, what stands before the last ####, and a full stop at the end do not count.
std::string withoutDecoration(std::string_view text) {
  std::string plain;
  std::ranges::copy_if(text, std::back_inserter(plain), [](char c) { return c != ',' && c != '$'; });
  if (const std::size_t mark = plain.rfind("#### "); mark != std::string::npos) plain.erase(0, mark + 5);
  const std::size_t last = plain.find_last_not_of('\n');
  const bool endsInStop = last != std::string::npos && plain[last] == '.' && plain.size() - last <= 2;
  if (endsInStop) plain.erase(last, 1);
  return data::lowered(plain);
}

std::string normalised(const data::Task& task, std::string_view text) {
  std::string plain(data::stripped(text));
  if (task.ignoresPunctuation) {
    constexpr std::string_view punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    std::erase_if(plain, [&](char c) { return punctuation.find(c) != std::string_view::npos; });
  }
  return task.ignoresCase ? data::lowered(plain) : plain;
}

MatchedAnswer undecorated(const char* filter, std::string answer, std::string_view target) {
  const bool isRight = withoutDecoration(answer) == withoutDecoration(target);
  return {.filter = filter, .answer = std::move(answer), .isRight = isRight};
}

}  // namespace

std::vector<std::string> answerFilters(AnswerForm form) {
  if (form == AnswerForm::gsm8k) return {"strict-match", "flexible-extract"};
  return {"none"};
}

std::vector<MatchedAnswer> matchAnswer(const data::Task& task, std::string_view text, std::string_view target) {
  switch (task.form) {
    case AnswerForm::gsm8k:
      return {undecorated("strict-match", markedNumber(text), target),
              undecorated("flexible-extract", lastNumber(text), target)};
    case AnswerForm::number:
      return {undecorated("none", lastNumber(text), lastNumber(target))};
    case AnswerForm::text:
      break;
  }
  std::string answer = normalised(task, text);
  const bool isRight = answer == normalised(task, target);
  return {{.filter = "none", .answer = std::move(answer), .isRight = isRight}};
}

}  // namespace tandem::train
