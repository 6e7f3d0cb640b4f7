#pragma once
// Runs a check on every instruction set that was compiled and that this processor has.

#include <gtest/gtest.h>

#include <string>

#include "kernels/cpu/simd_targets.h"

#include "hwy/highway.h"

namespace tandem::kernels::cpu::test {

// body(name of the target); afterwards the processor's best target is in force again.
template <class Body>
void onEveryTarget(const Body& body) {
  const auto choose = [](std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().DeInit();
  };
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    choose(target);
    body(std::string(hwy::TargetName(target)));
  }
  choose(0);
}

}  // namespace tandem::kernels::cpu::test
