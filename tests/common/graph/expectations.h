#pragma once
// Checks that several of the suites make.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "common/base/error.h"
#include "tests/common/graph/program_runner.h"

namespace tandem::graph::test {

// The action throws an Error of kind usage whose message has all the parts.
template <class Action>
void expectUsageError(Action action, std::initializer_list<const char*> parts) {
  try {
    action();
    FAIL() << "no error; expected one with '" << *parts.begin() << "'";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    for (const char* part : parts) EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
}

// Both programs, run on the same batch, give the same losses and gradients to `tolerance`, relative for numbers above
// one; 0 means bit for bit. `other` runs in an arena whose unused parts are NaN.
inline void expectSameResults(const Program& one, const Program& other, float tolerance) {
  ProgramRunner first(one), second(other, true);
  const Batch batch = randomBatch(one);
  Values expected{{"losses", first.run(batch)}}, actual{{"losses", second.run(batch)}};
  expected.merge(first.gradients());
  actual.merge(second.gradients());
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(values.size(), actual.at(name).size()) << name;
    for (std::size_t index = 0; index < values.size(); ++index) {
      ASSERT_NEAR(values[index], actual.at(name)[index], tolerance * std::max(1.0f, std::abs(values[index])))
          << name << " " << index;
    }
  }
}

// A fused kernel rounds once where two kernels round twice.
constexpr float rounding = 2e-5f;

// How many nodes run this operator.
inline int countOf(const Program& program, Operator op) {
  int count = 0;
  for (const Node& node : program.nodes()) count += node.op == op ? 1 : 0;
  return count;
}

}  // namespace tandem::graph::test
