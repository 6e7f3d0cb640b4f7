#include <gtest/gtest.h>

#include <array>

#include "common/comm/detail/float16.h"

namespace tandem::test {
namespace {

using base::DType;

TEST(SixteenBitFloats, areWidenedAndNarrowedByTheirType) {
  const std::array<float, 3> values = {1.0f, -3.5f, 1e30f};
  std::array<base::BFloat16, 3> brain;
  std::array<base::Float16, 3> half;
  std::array<float, 3> fromBrain{}, fromHalf{};
  comm::detail::narrow(values.data(), 3, DType::bf16, brain.data());
  comm::detail::widen(brain.data(), DType::bf16, 3, fromBrain.data());
  comm::detail::narrow(values.data(), 3, DType::f16, half.data());
  comm::detail::widen(half.data(), DType::f16, 3, fromHalf.data());
  for (const auto& back : {fromBrain, fromHalf}) {
    EXPECT_EQ(back[0], 1.0f);
    EXPECT_EQ(back[1], -3.5f);
  }
  EXPECT_NEAR(fromBrain[2] / 1e30f, 1.0f, 1.0f / 256);
  EXPECT_GT(fromHalf[2], 1e38f) << "beyond float16 is infinity";
}

}  // namespace
}  // namespace tandem::test
