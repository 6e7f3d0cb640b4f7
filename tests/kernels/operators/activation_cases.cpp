#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

struct Options {
  ActivationKind kind;
  std::int64_t rows, width;
  bool gradInPlace = false;
  Draw input = normal(2);
  std::string note = {};
};

Case makeCase(const Options& o) {
  const double elements = static_cast<double>(o.rows * o.width);
  const Shape inputShape{o.rows, o.kind == ActivationKind::swiglu ? 2 * o.width : o.width};
  Case c("activation", label(o.kind) + "_" + label({{"rows", o.rows}, {"width", o.width}}) +
                           (o.gradInPlace ? "_gradInPlace" : "") + o.note);
  c.tensor("input", inputShape, o.input);
  c.result("output", {o.rows, o.width});
  c.tensor("gradOutput", {o.rows, o.width}, normal());
  if (o.gradInPlace) {
    c.inPlace("gradInput", "gradOutput");
  } else {
    c.result("gradInput", inputShape);
  }
  c.step("Activation", 10 * elements, [kind = o.kind](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Activation{kind, v.in("input"), v.out("output")}, stream);
  });
  c.step("ActivationBackward", 16 * elements, [kind = o.kind](Operands& v, Backend& backend, Stream& stream) {
    backend.run(ActivationBackward{kind, v.in("gradOutput"), v.in("input"), v.out("gradInput")}, stream);
  });
  return c.loss("output", "gradOutput").derivative("input", "gradInput");
}

// Where exponentials overflow and tails vanish.
std::vector<double> extremes() {
  return {0, -0.0, 1e-20, -1e-20, 1e-3, 5, -5, 10, -10, 50, -50, 90, -90, 1e4, -1e4, 1};
}

Case makeAddCase(std::int64_t rows, std::int64_t width, const char* inPlaceOf) {
  const Shape shape{rows, width};
  Case c("add", label({{"rows", rows}, {"width", width}}) + (*inPlaceOf ? std::string("_into_") + inPlaceOf : ""));
  c.tensor("left", shape, normal()).tensor("right", shape, normal());
  if (*inPlaceOf) {
    c.inPlace("output", inPlaceOf);
  } else {
    c.result("output", shape);
  }
  return c.step("Add", static_cast<double>(rows * width), [](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Add{v.in("left"), v.in("right"), v.out("output")}, stream);
  });
}

}  // namespace

void addActivationCases(Registry& registry) {
  using enum ActivationKind;
  for (const ActivationKind kind : {geluTanh, geluErf, relu2, swiglu}) {
    for (const auto& [rows, width] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {1, 3}, {3, 17}, {17, 65}, {2, 96}, {5, 1000}, {2, 2056}, {0, 8}}) {
      registry.cases.push_back(makeCase({kind, rows, width}));
    }
    if (kind != swiglu) registry.cases.push_back(makeCase({kind, 3, 33, true}));
    registry.cases.push_back(makeCase({kind, 1, kind == swiglu ? 8 : 16, false, values(extremes()), "_extremes"}));
    registry.timed.push_back(makeCase({kind, 1024, 3072}));
  }
  for (const char* inPlaceOf : {"", "left", "right"}) {
    registry.cases.push_back(makeAddCase(1, 1, inPlaceOf));
    registry.cases.push_back(makeAddCase(3, 65, inPlaceOf));
    registry.cases.push_back(makeAddCase(17, 1003, inPlaceOf));
    registry.cases.push_back(makeAddCase(0, 16, inPlaceOf));
  }
  registry.timed.push_back(makeAddCase(1024, 768, ""));
}

}  // namespace tandem::kernels::test
