#pragma once
// Whether a text that a model wrote has the right answer.

#include <string>
#include <string_view>
#include <vector>

#include "common/data/task.h"

namespace tandem::train {

// A way to take the answer out of a text, by the name that lm-evaluation-harness gives to it, and what came of it.
struct MatchedAnswer {
  std::string filter;  // "none", "strict-match" or "flexible-extract"
  std::string answer;
  bool isRight = false;
};

// The filters of a form, in this order always.
std::vector<std::string> answerFilters(data::AnswerForm form);

// One for each filter.
std::vector<MatchedAnswer> matchAnswer(const data::Task& task, std::string_view text, std::string_view target);

}  // namespace tandem::train
