#include <cmath>

#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

// Linear in its input, so its gradient is the same operator over the gradient: with the mask of the same keys.
Case makeCase(std::int64_t rows, std::int64_t width, float rate, bool inPlace = false) {
  Case c("dropout",
         label({{"rows", rows}, {"width", width}, {"percent", std::lround(100 * rate)}}) + (inPlace ? "_inPlace" : ""));
  c.tolerance(1e-6, 1e-2);
  c.tensor("input", {rows, width}, normal()).tensor("gradOutput", {rows, width}, normal());
  if (rate > 0) c.index("keys", {rows, 2}, uniformIndex(1 << 30));
  if (inPlace) {
    c.inPlace("output", "input");
  } else {
    c.result("output", {rows, width});
  }
  c.result("gradInput", {rows, width});
  const auto run = [rate](const char* from, const char* to) {
    return [=](Operands& v, Backend& backend, Stream& stream) {
      backend.run(Dropout{.input = v.in(from),
                          .keys = v.in("keys"),
                          .output = v.out(to),
                          .rate = rate,
                          .factor = rate > 0 ? 1 / (1 - rate) : 0.7f,
                          .purpose = 5},
                  stream);
    };
  };
  const double flops = static_cast<double>(rows * width);
  c.step("Dropout", flops, run("input", "output")).step("Dropout", flops, run("gradOutput", "gradInput"));
  if (!inPlace) c.loss("output", "gradOutput").derivative("input", "gradInput");
  return c;
}

}  // namespace

void addDropoutCases(Registry& registry) {
  for (const float rate : {0.0f, 0.1f, 0.5f}) {
    registry.cases.push_back(makeCase(1, 1, rate));
    registry.cases.push_back(makeCase(3, 7, rate));
    registry.cases.push_back(makeCase(5, 1024, rate));
    registry.cases.push_back(makeCase(64, 333, rate));
  }
  registry.cases.push_back(makeCase(4, 65, 0.25f, true));
  registry.timed.push_back(makeCase(8, 1 << 20, 0.1f));
}

}  // namespace tandem::kernels::test
