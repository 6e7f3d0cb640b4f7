#include <cmath>

#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

struct AdamWOptions {
  std::int64_t count, step;
  float weightDecay = 0, gradientScale = 1;
  DType low = DType::f32;  // f32: none
  bool roundsMoments = false;
};

// Second moments are averages of squares.
Draw squares(double deviation) {
  return [=](base::RandomStream& random, std::vector<double>& all) {
    for (double& value : all) value = std::pow(deviation * static_cast<double>(random.nextNormal()), 2);
  };
}

Case makeAdamWCase(const AdamWOptions& o) {
  Case c("adamW", label({{"count", o.count}, {"step", o.step}}) + (o.weightDecay != 0 ? "_decay" : "") +
                      (o.gradientScale != 1 ? "_clipped" : "") +
                      (o.low != DType::f32 ? std::string("_low_") + base::name(o.low) : "") +
                      (o.roundsMoments ? "_rounded" : ""));
  c.onlySingle();
  c.single("gradient", {o.count}, normal(0.01)).single("weight", {o.count}, normal());
  // Before the first step the moments are zero.
  const Storage moments = o.roundsMoments ? Storage::half : Storage::single;
  c.add({"firstMoment", "firstMoment", moments, {o.count}, {}, 0, o.step == 1 ? constant(0) : normal(0.01)});
  c.add({"secondMoment", "secondMoment", moments, {o.count}, {}, 0, o.step == 1 ? constant(0) : squares(0.01)});
  if (o.low == DType::bf16) c.result("lowWeight", {o.count}, Storage::half);
  if (o.low == DType::f16) c.result("lowWeight", {o.count}, Storage::float16);
  if (o.roundsMoments) c.tolerance(0, 0);  // the bits are part of the contract
  return c.step("AdamW", 14 * static_cast<double>(o.count), [o](Operands& v, Backend& backend, Stream& stream) {
    backend.run(AdamW{.gradient = v.in("gradient"),
                      .weight = v.out("weight"),
                      .firstMoment = v.out("firstMoment"),
                      .secondMoment = v.out("secondMoment"),
                      .lowWeight = v.out("lowWeight"),
                      .learningRate = 1e-2f,
                      .weightDecay = o.weightDecay,
                      .gradientScale = o.gradientScale,
                      .step = o.step,
                      .rounding = {.key = 0x123456789abcdef, .stream = 0xfedcba987654321, .firstElement = o.count + 6}},
                stream);
  });
}

Case makeNewtonSchulzCase(std::int64_t rows, std::int64_t columns, std::int64_t iterations, Draw draw,
                          const std::string& note = "") {
  Case c("newtonSchulz", label({{"rows", rows}, {"columns", columns}, {"iterations", iterations}}) + note);
  c.onlySingle();
  c.single("matrix", {rows, columns}, std::move(draw)).result("output", {rows, columns}, Storage::single);
  const double small = static_cast<double>(std::min(rows, columns)),
               large = static_cast<double>(std::max(rows, columns));
  const double flops = static_cast<double>(iterations) * (4 * small * small * large + 2 * small * small * small);
  c.step("NewtonSchulz", flops, [iterations](Operands& v, Backend& backend, Stream& stream) {
    backend.run(NewtonSchulz{v.in("matrix"), v.out("output"), iterations}, stream);
  });
  // Each iteration multiplies what small singular values lost by up to 3.4445.
  return c.tolerance(5e-4, 5e-4);
}

}  // namespace

void addOptimizerCases(Registry& registry) {
  for (const AdamWOptions& options : {
           AdamWOptions{1, 1},
           AdamWOptions{3, 1, 0.1f},
           AdamWOptions{17, 2, 0.1f, 0.25f},
           AdamWOptions{65, 1000, 0.1f, 1, DType::bf16},
           AdamWOptions{4097, 20, 0, 0.5f, DType::bf16},
           AdamWOptions{65, 3, 0.1f, 0.125f, DType::f16},
           AdamWOptions{0, 1, 0.1f, 1, DType::bf16},
           AdamWOptions{1, 1, 0.1f, 1, DType::f32, true},
           AdamWOptions{65, 7, 0.1f, 0.25f, DType::f16, true},
           AdamWOptions{1003, 1, 0.1f, 1, DType::bf16, true},
           AdamWOptions{4096, 20, 0, 0.5f, DType::f32, true},
       }) {
    registry.cases.push_back(makeAdamWCase(options));
  }
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {1, 17}, {3, 17}, {17, 3}, {16, 16}, {65, 33}, {48, 96}}) {
    registry.cases.push_back(makeNewtonSchulzCase(rows, columns, 5, normal()));
  }
  registry.cases.push_back(makeNewtonSchulzCase(17, 9, 1, normal(1e-4)));
  registry.cases.push_back(makeNewtonSchulzCase(9, 14, 2, normal()));
  registry.cases.push_back(makeNewtonSchulzCase(8, 5, 5, constant(0), "_zeros"));
  registry.timed.push_back(makeAdamWCase({std::int64_t{8} << 20, 20, 0.1f, 0.5f}));
  registry.timed.push_back(makeNewtonSchulzCase(768, 768, 5, normal()));
}

}  // namespace tandem::kernels::test
