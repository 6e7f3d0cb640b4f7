#include <cmath>
#include <limits>

#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

Case makeSquaredNormCase(std::int64_t count) {
  Case c("squaredNorm", label({{"count", count}}));
  c.onlySingle().tolerance(1e-12, 1e-12);
  c.single("input", {count}, normal()).result("result", {1}, Storage::wide);
  return c.step("SquaredNorm", 2 * static_cast<double>(count), [](Operands& v, Backend& backend, Stream& stream) {
    backend.run(SquaredNorm{v.in("input"), v.out("result")}, stream);
  });
}

Case makeScaleCase(std::int64_t count) {
  Case c("scale", label({{"count", count}}));
  c.onlySingle().tolerance(1e-6, 1e-6).single("data", {count}, normal());
  return c.step("Scale", static_cast<double>(count), [](Operands& v, Backend& backend, Stream& stream) {
    v.in("data");
    backend.run(Scale{v.out("data"), 0.937f}, stream);
  });
}

Case makeAxpyCase(std::int64_t count) {
  Case c("axpy", label({{"count", count}}));
  c.onlySingle().tolerance(1e-6, 1e-6);
  c.single("source", {count}, normal()).single("target", {count}, normal());
  return c.step("Axpy", 2 * static_cast<double>(count), [](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Axpy{v.in("source"), v.out("target"), -1.3f}, stream);
  });
}

// Ties of the rounding to bfloat16, its limits, and what is no number.
std::vector<double> specials() {
  const double infinity = std::numeric_limits<double>::infinity();
  return {0,
          -0.0,
          1 + std::ldexp(1, -8),
          1 + 3 * std::ldexp(1, -8),
          -1 - std::ldexp(1, -8),
          1 + std::ldexp(1, -8) + std::ldexp(1, -20),
          static_cast<double>(std::numeric_limits<float>::max()),
          static_cast<double>(std::numeric_limits<float>::min()),
          static_cast<double>(std::numeric_limits<float>::denorm_min()),
          std::ldexp(1, -130),
          infinity,
          -infinity,
          std::numeric_limits<double>::quiet_NaN()};
}

// The same of float16.
std::vector<double> specialsOfFloat16() {
  const double infinity = std::numeric_limits<double>::infinity();
  return {0,
          -0.0,
          1 + std::ldexp(1, -11),
          1 + 3 * std::ldexp(1, -11),
          -1 - std::ldexp(1, -11),
          1 + std::ldexp(1, -11) + std::ldexp(1, -20),
          65504,
          65519,
          -65520,
          1e30,
          std::ldexp(1, -14),
          std::ldexp(1023.5, -24),
          std::ldexp(1, -24),
          std::ldexp(1.5, -24),
          -std::ldexp(1, -25),
          std::ldexp(1, -26),
          infinity,
          -infinity,
          std::numeric_limits<double>::quiet_NaN()};
}

Case makeCastCase(Storage from, Storage to, const std::string& direction, std::int64_t count, Draw draw,
                  const std::string& note = "") {
  Case c("cast", direction + "_" + label({{"count", count}}) + note);
  c.onlySingle().tolerance(0, 0);
  c.add({"input", "input", from, {count}, {}, 0, std::move(draw)}).result("output", {count}, to);
  return c.step("Cast", 0, [](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Cast{v.in("input"), v.out("output")}, stream);
  });
}

Case makeFillCase(std::int64_t count) {
  Case c("fill", label({{"count", count}}));
  c.tolerance(0, 0).result("target", {count});
  return c.step("Fill", 0, [](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Fill{v.out("target"), -0.3f}, stream);
  });
}

}  // namespace

void addFlatCases(Registry& registry) {
  for (const std::int64_t count : {0, 1, 3, 17, 65, 4097, 100003}) {
    registry.cases.push_back(makeSquaredNormCase(count));
    registry.cases.push_back(makeScaleCase(count));
    registry.cases.push_back(makeAxpyCase(count));
    registry.cases.push_back(makeFillCase(count));
    registry.cases.push_back(makeCastCase(Storage::single, Storage::half, "toHalf", count, normal()));
    registry.cases.push_back(makeCastCase(Storage::half, Storage::single, "toSingle", count, normal()));
    registry.cases.push_back(makeCastCase(Storage::single, Storage::float16, "toFloat16", count, normal()));
    registry.cases.push_back(makeCastCase(Storage::float16, Storage::single, "fromFloat16", count, normal()));
  }
  const auto special = static_cast<std::int64_t>(specials().size());
  registry.cases.push_back(
      makeCastCase(Storage::single, Storage::half, "toHalf", special, values(specials()), "_special"));
  registry.cases.push_back(
      makeCastCase(Storage::half, Storage::single, "toSingle", special, values(specials()), "_special"));
  const auto specialFloat16 = static_cast<std::int64_t>(specialsOfFloat16().size());
  registry.cases.push_back(makeCastCase(Storage::single, Storage::float16, "toFloat16", specialFloat16,
                                        values(specialsOfFloat16()), "_special"));
  registry.cases.push_back(makeCastCase(Storage::float16, Storage::single, "fromFloat16", specialFloat16,
                                        values(specialsOfFloat16()), "_special"));

  constexpr std::int64_t large = std::int64_t{16} << 20;
  registry.timed.push_back(makeSquaredNormCase(large));
  registry.timed.push_back(makeScaleCase(large));
  registry.timed.push_back(makeAxpyCase(large));
  registry.timed.push_back(makeFillCase(large));
  registry.timed.push_back(makeCastCase(Storage::single, Storage::half, "toHalf", large, normal()));
}

}  // namespace tandem::kernels::test
