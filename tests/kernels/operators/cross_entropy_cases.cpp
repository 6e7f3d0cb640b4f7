#include <algorithm>

#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

enum class Gradients { none, input, both };

struct Options {
  std::int64_t rows, width, vocabulary;
  double masked = 0;  // share of the rows without a target
  Gradients gradients = Gradients::both;
  bool accumulate = false;
  double deviation = 1;
  double mean = 0;          // of the weights, to inputs about 1: all logits lie about `width` times that
  bool scalesRows = false;  // each by a number of its own
};

std::string nameOf(const Options& o) {
  static const char* const gradients[] = {"_lossOnly", "_frozenHead", ""};
  return label({{"rows", o.rows}, {"width", o.width}, {"vocabulary", o.vocabulary}}) +
         (o.masked >= 1  ? "_allMasked"
          : o.masked > 0 ? "_masked"
                         : "") +
         gradients[static_cast<int>(o.gradients)] + (o.accumulate ? "_accumulate" : "") +
         (o.deviation > 1 ? "_sharp" : "") + (o.mean < 0 ? "_farBelowZero" : "") + (o.scalesRows ? "_scalesRows" : "");
}

Case makeCase(const Options& o) {
  Case c("linearCrossEntropy", nameOf(o));
  c.tensor("input", {o.rows, o.width}, o.mean == 0 ? normal(o.deviation) : normal(0.1, 1));
  c.tensor("weight", {o.vocabulary, o.width}, normal(0.3, o.mean));
  c.index("targets", {o.rows}, targets(o.vocabulary, o.masked));
  c.result("losses", {o.rows}, Storage::single);
  if (o.gradients != Gradients::none) {
    if (o.scalesRows) {
      c.single("gradScale", {o.rows}, normal());
    } else {
      c.single("gradScale", {1}, constant(0.37));
    }
    c.result("gradInput", {o.rows, o.width});
  }
  if (o.gradients == Gradients::both && o.accumulate) c.single("gradWeight", {o.vocabulary, o.width}, normal());
  if (o.gradients == Gradients::both && !o.accumulate) {
    c.result("gradWeight", {o.vocabulary, o.width}, Storage::single);
  }
  const double products = o.gradients == Gradients::none ? 1 : o.gradients == Gradients::input ? 2 : 3;
  c.step("LinearCrossEntropy", 2 * products * static_cast<double>(o.rows * o.width * o.vocabulary),
         [accumulate = o.accumulate](Operands& v, Backend& backend, Stream& stream) {
           backend.run(LinearCrossEntropy{.input = v.in("input"),
                                          .weight = v.in("weight"),
                                          .targets = v.in("targets"),
                                          .gradScale = v.in("gradScale"),
                                          .losses = v.out("losses"),
                                          .gradInput = v.out("gradInput"),
                                          .gradWeight = v.out("gradWeight"),
                                          .accumulateWeight = accumulate},
                       stream);
         });
  if (o.gradients != Gradients::none) c.loss("losses", "gradScale").derivative("input", "gradInput");
  if (o.gradients == Gradients::both && !o.accumulate) c.derivative("weight", "gradWeight");
  // Weights about a mean far from zero: the gradient of the input is what is left when it cancels, and a backend may
  // have rounded the gradients of the logits, which bring it in, to bfloat16.
  if (o.mean != 0) return c.tolerance(1e-4, 6e-2);
  return o.deviation > 1 ? c.tolerance(1e-4, 2e-2) : c.tolerance(2e-5, 2e-2);
}

// The vocabulary in `parts` parts, the last one smaller, put together again.
Case makePartialCase(const Options& o, std::int64_t parts) {
  Case c("linearCrossEntropy", nameOf(o) + "_" + std::to_string(parts) + "parts");
  const std::int64_t most = (o.vocabulary + parts - 1) / parts;
  c.tensor("input", {o.rows, o.width}, normal(o.deviation));
  c.index("targets", {o.rows}, targets(o.vocabulary, o.masked));
  c.single("gradScale", {1}, constant(0.37));
  c.result("losses", {o.rows}, Storage::single).result("logSumExp", {o.rows}, Storage::single);
  c.result("partials", {parts, 2, o.rows}, Storage::single);
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::string number = std::to_string(part);
    const std::int64_t rows = std::min(most, o.vocabulary - part * most);
    c.tensor("weight" + number, {rows, o.width}, normal(0.3));
    c.result("gradInput" + number, {o.rows, o.width});
    if (o.accumulate) {
      c.single("gradWeight" + number, {rows, o.width}, normal());
    } else {
      c.result("gradWeight" + number, {rows, o.width}, Storage::single);
    }
  }
  const double flops = 2 * static_cast<double>(o.rows * o.width * o.vocabulary);
  c.step("PartialCrossEntropy", flops, [=](Operands& v, Backend& backend, Stream& stream) {
    const TensorView all = v.out("partials");
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t bytes = part * 2 * o.rows * base::byteSize(all.type);
      backend.run(
          PartialCrossEntropy{.input = v.in("input"),
                              .weight = v.in("weight" + std::to_string(part)),
                              .targets = v.in("targets"),
                              .firstToken = part * most,
                              .partials = TensorView(static_cast<std::byte*>(all.data) + bytes, all.type, {2, o.rows})},
          stream);
    }
    backend.run(MergeCrossEntropy{all, v.in("targets"), v.out("losses"), v.out("logSumExp")}, stream);
  });
  c.step("PartialCrossEntropyBackward", 3 * flops, [=](Operands& v, Backend& backend, Stream& stream) {
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::string number = std::to_string(part);
      backend.run(PartialCrossEntropyBackward{.input = v.in("input"),
                                              .weight = v.in("weight" + number),
                                              .targets = v.in("targets"),
                                              .firstToken = part * most,
                                              .logSumExp = v.in("logSumExp"),
                                              .gradScale = v.in("gradScale"),
                                              .gradInput = v.out("gradInput" + number),
                                              .gradWeight = v.out("gradWeight" + number),
                                              .accumulateWeight = o.accumulate},
                  stream);
    }
  });
  if (!o.accumulate) {
    c.loss("losses", "gradScale");
    for (std::int64_t part = 0; part < parts; ++part) {
      c.derivative("weight" + std::to_string(part), "gradWeight" + std::to_string(part));
    }
  }
  return o.deviation > 1 ? c.tolerance(1e-4, 2e-2) : c.tolerance(2e-5, 2e-2);
}

}  // namespace

void addCrossEntropyCases(Registry& registry) {
  for (const Options& options : {
           Options{1, 3, 5},
           Options{3, 17, 65},
           Options{17, 64, 97, 0.3},
           Options{33, 65, 257, 0, Gradients::both, true},
           Options{70, 32, 1001, 0.1},
           Options{3, 8, 4099, 0.3},
           Options{17, 33, 65, 1, Gradients::both, true},
           Options{17, 33, 65, 1},
           Options{9, 96, 131, 0.3, Gradients::input},
           Options{9, 80, 333, 0.3, Gradients::none},
           Options{9, 48, 97, 0.3, Gradients::both, false, 30},
           Options{9, 48, 97, 0, Gradients::both, false, 1, -4},
           Options{19, 48, 97, 0.3, Gradients::both, false, 1, 0, true},
           Options{0, 16, 33, 0},
           Options{0, 16, 33, 0, Gradients::both, true},
       }) {
    registry.cases.push_back(makeCase(options));
  }
  registry.cases.push_back(makePartialCase({1, 3, 5}, 2));
  registry.cases.push_back(makePartialCase({17, 33, 65, 0.3}, 3));
  registry.cases.push_back(makePartialCase({33, 65, 257, 0.1, Gradients::both, true}, 2));
  registry.cases.push_back(makePartialCase({3, 8, 8200, 0.3}, 2));
  registry.cases.push_back(makePartialCase({9, 16, 33, 1}, 2));
  registry.cases.push_back(makePartialCase({9, 48, 97, 0.3, Gradients::both, false, 30}, 4));
  registry.cases.push_back(makePartialCase({0, 16, 33}, 2));
  registry.timed.push_back(makeCase({1024, 768, 50257}));
  registry.timed.push_back(makeCase({1024, 384, 4096, 0, Gradients::none}));
}

}  // namespace tandem::kernels::test
