#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

// Where the sum of input and residual goes.
enum class Sum { none, own, intoInput, intoResidual };

struct Options {
  NormKind kind;
  std::int64_t rows, width;
  Sum sum = Sum::none;
  bool bias = false, accumulate = false, gradInPlace = false;
  Draw input = normal();
  std::string note = {};
};

std::string nameOf(const Options& o) {
  static const char* const sums[] = {"", "_residual", "_sumIntoInput", "_sumIntoResidual"};
  return std::string(o.kind == NormKind::layer ? "layer_" : "rms_") + label({{"rows", o.rows}, {"width", o.width}}) +
         sums[static_cast<int>(o.sum)] + (o.bias ? "_bias" : "") + (o.accumulate ? "_accumulate" : "") +
         (o.gradInPlace ? "_gradInPlace" : "") + o.note;
}

void addOperands(Case& c, const Options& o) {
  const Shape all{o.rows, o.width}, one{o.width};
  c.tensor("input", all, o.input);
  if (o.sum != Sum::none) c.tensor("residual", all, normal());
  if (o.sum == Sum::own) c.result("sum", all);
  if (o.sum == Sum::intoInput) c.inPlace("sum", "input");
  if (o.sum == Sum::intoResidual) c.inPlace("sum", "residual");
  c.tensor("weight", one, normal(0.3, 1));
  if (o.bias) c.tensor("bias", one, normal());
  c.result("output", all);
  if (o.kind == NormKind::layer) c.result("mean", {o.rows}, Storage::single);
  c.result("reciprocal", {o.rows}, Storage::single);

  c.tensor("gradOutput", all, normal());
  if (o.sum != Sum::none) c.tensor("gradSum", all, normal());
  if (o.gradInPlace) {
    c.inPlace("gradInput", "gradSum");
  } else {
    c.result("gradInput", all);
  }
  for (const char* name : {"gradWeight", "gradBias"}) {
    if (name == std::string("gradBias") && !o.bias) continue;
    if (o.accumulate) {
      c.single(name, one, normal());
    } else {
      c.result(name, one, Storage::single);
    }
  }
}

void addBackward(Case& c, const Options& o) {
  const double elements = static_cast<double>(o.rows * o.width);
  c.step("NormBackward", 14 * elements,
         [kind = o.kind, residual = o.sum != Sum::none, accumulate = o.accumulate](Operands& v, Backend& backend,
                                                                                   Stream& stream) {
           backend.run(NormBackward{.kind = kind,
                                    .gradOutput = v.in("gradOutput"),
                                    .gradSum = v.in("gradSum"),
                                    .input = v.in(residual ? "sum" : "input"),
                                    .weight = v.in("weight"),
                                    .mean = v.in("mean"),
                                    .reciprocal = v.in("reciprocal"),
                                    .gradInput = v.out("gradInput"),
                                    .gradWeight = v.out("gradWeight"),
                                    .gradBias = v.out("gradBias"),
                                    .accumulate = accumulate},
                       stream);
         });
  if (o.accumulate) return;
  c.loss("output", "gradOutput").derivative("input", "gradInput").derivative("weight", "gradWeight");
  if (o.bias) c.derivative("bias", "gradBias");
  if (o.sum != Sum::none) c.loss("sum", "gradSum").derivative("residual", "gradInput");
}

Case makeCase(const Options& o) {
  Case c("norm", nameOf(o));
  addOperands(c, o);
  c.step("Norm", 7 * static_cast<double>(o.rows * o.width),
         [kind = o.kind](Operands& v, Backend& backend, Stream& stream) {
           backend.run(Norm{.kind = kind,
                            .epsilon = 1e-5f,
                            .input = v.in("input"),
                            .residual = v.in("residual"),
                            .weight = v.in("weight"),
                            .bias = v.in("bias"),
                            .sum = v.out("sum"),
                            .output = v.out("output"),
                            .mean = v.out("mean"),
                            .reciprocal = v.out("reciprocal")},
                       stream);
         });
  // The gradient by a lone element is zero but for epsilon: nothing to compare.
  if (o.width > 1) addBackward(c, o);
  return c;
}

}  // namespace

void addNormCases(Registry& registry) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    const bool bias = kind == NormKind::layer;
    for (const Options& options : {
             Options{kind, 1, 1},
             Options{kind, 1, 3, Sum::none, bias},
             Options{kind, 3, 17, Sum::own, bias},
             Options{kind, 17, 65, Sum::intoInput, false},
             Options{kind, 17, 65, Sum::intoResidual, bias, true},
             Options{kind, 5, 96, Sum::own, bias, false, true},
             Options{kind, 5, 96, Sum::none, true, true},
             Options{kind, 33, 769, Sum::own, bias},
             Options{kind, 0, 16, Sum::own, bias},
         }) {
      registry.cases.push_back(makeCase(options));
    }
    // Widths from a warp a row to the widest row that a CUDA block keeps in registers, and beyond, with several rows a
    // block one after the other; then several blocks of several rows.
    for (const auto& [rows, width] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {9, 768}, {3, 1544}, {2, 3080}, {2, 5000}, {2, 8200}, {40, 8}}) {
      registry.cases.push_back(makeCase({kind, rows, width, Sum::own, bias, true}));
    }
    // Only epsilon keeps a row of zeros from a division by zero; it bends at sqrt(epsilon).
    registry.cases.push_back(makeCase({kind, 3, 64, Sum::none, bias, false, false, constant(0), "_zeros"}));
    registry.cases.back().differenceStep = 1e-7;
    registry.timed.push_back(makeCase({kind, 1024, 768, Sum::own, bias}));
  }
  // The variance must not be lost in the square of the mean.
  registry.cases.push_back(
      makeCase({NormKind::layer, 3, 257, Sum::none, true, false, false, normal(1, 100), "_farFromZero"})
          .tolerance(1e-4, 3e-2));
}

}  // namespace tandem::kernels::test
