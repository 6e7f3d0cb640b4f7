#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

struct Options {
  std::int64_t rows, inputs, outputs;
  bool bias = false, accumulate = false;
  ActivationKind activation = ActivationKind::none;
};

std::string nameOf(const Options& o) {
  return label({{"rows", o.rows}, {"inputs", o.inputs}, {"outputs", o.outputs}}) + (o.bias ? "_bias" : "") +
         (o.accumulate ? "_accumulate" : "") + (o.activation == ActivationKind::none ? "" : "_" + label(o.activation));
}

double productFlops(const Options& o) { return 2 * static_cast<double>(o.rows * o.inputs * o.outputs); }

void addOperands(Case& c, const Options& o) {
  c.tensor("input", {o.rows, o.inputs}, normal());
  c.tensor("weight", {o.outputs, o.inputs}, normal(0.3));
  if (o.bias) c.tensor("bias", {o.outputs}, normal());
  c.result("output", {o.rows, o.outputs});
  c.tensor("gradOutput", {o.rows, o.outputs}, normal());
  if (o.accumulate) {
    c.tensor("gradInput", {o.rows, o.inputs}, normal());
    c.single("gradWeight", {o.outputs, o.inputs}, normal());
    if (o.bias) c.single("gradBias", {o.outputs}, normal());
  } else {
    c.result("gradInput", {o.rows, o.inputs});
    c.result("gradWeight", {o.outputs, o.inputs}, Storage::single);
    if (o.bias) c.result("gradBias", {o.outputs}, Storage::single);
  }
}

// The gradient of what the product gave is the operand `gradient`; what it read is `input`.
void addWeightStep(Case& c, const Options& o, const char* gradient, const char* input) {
  c.step("LinearBackwardWeight", productFlops(o),
         [gradient, input, accumulate = o.accumulate](Operands& v, Backend& backend, Stream& stream) {
           backend.run(LinearBackwardWeight{.gradOutput = v.in(gradient),
                                            .input = v.in(input),
                                            .gradWeight = v.out("gradWeight"),
                                            .gradBias = v.out("gradBias"),
                                            .accumulate = accumulate},
                       stream);
         });
  if (o.accumulate) return;
  c.loss("output", "gradOutput").derivative("input", "gradInput").derivative("weight", "gradWeight");
  if (o.bias) c.derivative("bias", "gradBias");
}

// The activation is in the epilogue of the product, its derivative an operator of its own.
Case makeCase(const Options& o) {
  Case c("linear", nameOf(o));
  addOperands(c, o);
  const bool activated = o.activation != ActivationKind::none;
  if (activated) c.result("preActivation", {o.rows, o.outputs}).result("gradPre", {o.rows, o.outputs});
  c.step("Linear", productFlops(o), [kind = o.activation](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Linear{.input = v.in("input"),
                       .weight = v.in("weight"),
                       .bias = v.in("bias"),
                       .activation = kind,
                       .preActivation = v.out("preActivation"),
                       .output = v.out("output")},
                stream);
  });
  if (activated) {
    c.step("ActivationBackward", 0, [kind = o.activation](Operands& v, Backend& backend, Stream& stream) {
      backend.run(ActivationBackward{kind, v.in("gradOutput"), v.in("preActivation"), v.out("gradPre")}, stream);
    });
  }
  const char* const gradient = activated ? "gradPre" : "gradOutput";
  c.step("LinearBackwardInput", productFlops(o),
         [gradient, accumulate = o.accumulate](Operands& v, Backend& backend, Stream& stream) {
           backend.run(LinearBackwardInput{.gradOutput = v.in(gradient),
                                           .weight = v.in("weight"),
                                           .preActivation = {},
                                           .gradInput = v.out("gradInput"),
                                           .accumulate = accumulate},
                       stream);
         });
  addWeightStep(c, o, gradient, "input");
  return c;
}

// The activation that made the linear's input is differentiated in the epilogue of LinearBackwardInput.
Case makeActivatedInputCase(const Options& o) {
  Case c("linear", nameOf(o) + "OfInput");
  addOperands(c, o);
  c.result("activated", {o.rows, o.inputs});
  c.step("Linear", productFlops(o), [kind = o.activation](Operands& v, Backend& backend, Stream& stream) {
    const TensorView activated = v.out("activated");
    backend.run(Activation{kind, v.in("input"), activated}, stream);
    backend.run(Linear{.input = activated,
                       .weight = v.in("weight"),
                       .bias = v.in("bias"),
                       .preActivation = {},
                       .output = v.out("output")},
                stream);
  });
  c.step("LinearBackwardInput", productFlops(o),
         [kind = o.activation, accumulate = o.accumulate](Operands& v, Backend& backend, Stream& stream) {
           backend.run(LinearBackwardInput{.gradOutput = v.in("gradOutput"),
                                           .weight = v.in("weight"),
                                           .activation = kind,
                                           .preActivation = v.in("input"),
                                           .gradInput = v.out("gradInput"),
                                           .accumulate = accumulate},
                       stream);
         });
  addWeightStep(c, o, "gradOutput", "activated");
  return c;
}

// Without the memory for the backward pass, as in evaluation.
Case makeForwardCase(const Options& o) {
  Case c("linear", nameOf(o) + "_forward");
  c.tensor("input", {o.rows, o.inputs}, normal());
  c.tensor("weight", {o.outputs, o.inputs}, normal(0.3));
  if (o.bias) c.tensor("bias", {o.outputs}, normal());
  c.result("output", {o.rows, o.outputs});
  c.step("Linear", productFlops(o), [kind = o.activation](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Linear{.input = v.in("input"),
                       .weight = v.in("weight"),
                       .bias = v.in("bias"),
                       .activation = kind,
                       .preActivation = {},
                       .output = v.out("output")},
                stream);
  });
  return c;
}

}  // namespace

void addLinearCases(Registry& registry) {
  using enum ActivationKind;
  // Some have rows of whole groups of eight elements in all operands, which fused kernels of matrix libraries want, or
  // in some of them.
  for (const Options& options : {
           Options{1, 1, 1, true},
           Options{1, 3, 17},
           Options{3, 17, 65, true},
           Options{17, 65, 3, true, true},
           Options{65, 96, 33},
           Options{33, 128, 64, false, true},
           Options{130, 40, 201, true},
           Options{0, 16, 8, true},
           Options{0, 16, 8, true, true},
           Options{1, 65, 96, true, false, geluTanh},
           Options{17, 64, 65, true, false, geluTanh},
           Options{17, 33, 80, false, false, geluErf},
           Options{3, 17, 129, true, false, relu2},
           Options{33, 40, 24, true, true},
           Options{20, 48, 32, true, false, geluTanh},
           Options{130, 33, 72, true},
       }) {
    registry.cases.push_back(makeCase(options));
  }
  for (const ActivationKind kind : {geluTanh, geluErf, relu2}) {
    registry.cases.push_back(makeActivatedInputCase({17, 65, 33, true, false, kind}));
    registry.cases.push_back(makeActivatedInputCase({5, 96, 3, false, true, kind}));
    registry.cases.push_back(makeForwardCase({9, 65, 35, true, false, kind}));
  }
  registry.cases.push_back(makeActivatedInputCase({17, 64, 24, true, false, geluTanh}));
  registry.cases.push_back(makeForwardCase({1, 257, 513}));
  registry.timed.push_back(makeCase({1024, 768, 2304, true}));
  registry.timed.push_back(makeCase({1024, 768, 3072, true, false, geluTanh}));
  registry.timed.push_back(makeActivatedInputCase({1024, 3072, 768, true, false, geluTanh}));
  registry.timed.push_back(makeForwardCase({1, 768, 3072}));
}

}  // namespace tandem::kernels::test
