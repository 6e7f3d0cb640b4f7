#include <cmath>

#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

struct Options {
  std::int64_t rows;
  HeadLayout layout;
  bool normalised = false, inPlace = false, accumulate = false;
  std::int64_t positions = 300;
};

std::vector<double> frequencies(std::int64_t headSize) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < headSize / 2; ++i) {
    all.push_back(std::pow(10000.0, -2 * static_cast<double>(i) / static_cast<double>(headSize)));
  }
  return all;
}

std::string nameOf(const Options& o) {
  return label({{"rows", o.rows},
                {"heads", o.layout.heads},
                {"kvHeads", o.layout.kvHeads},
                {"size", o.layout.headSize},
                {"positions", o.positions}}) +
         (o.normalised ? "_normalised" : "") + (o.inPlace ? "_inPlace" : "") + (o.accumulate ? "_accumulate" : "");
}

void addOperands(Case& c, const Options& o) {
  const Shape all{o.rows, o.layout.width()}, one{o.layout.headSize};
  c.tensor("input", all, normal());
  c.index("positions", {o.rows}, uniformIndex(o.positions));
  c.single("frequencies", {o.layout.headSize / 2}, values(frequencies(o.layout.headSize)));
  c.tensor("gradOutput", all, normal());
  if (o.inPlace) {
    c.inPlace("output", "input").inPlace("gradInput", "gradOutput");
  } else {
    c.result("output", all).result("gradInput", all);
  }
  if (!o.normalised) return;
  c.tensor("queryWeight", one, normal(0.3, 1)).tensor("keyWeight", one, normal(0.3, 1));
  c.result("reciprocal", {o.rows, o.layout.heads + o.layout.kvHeads}, Storage::single);
  for (const char* name : {"gradQueryWeight", "gradKeyWeight"}) {
    if (o.accumulate) {
      c.single(name, one, normal());
    } else {
      c.result(name, one, Storage::single);
    }
  }
}

Case makeCase(const Options& o) {
  const double pairs = static_cast<double>(o.rows * (o.layout.heads + o.layout.kvHeads) * o.layout.headSize / 2);
  Case c("rotary", nameOf(o));
  addOperands(c, o);
  c.step("Rotary", 6 * pairs, [layout = o.layout](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Rotary{.layout = layout,
                       .input = v.in("input"),
                       .positions = v.in("positions"),
                       .frequencies = v.in("frequencies"),
                       .queryWeight = v.in("queryWeight"),
                       .keyWeight = v.in("keyWeight"),
                       .epsilon = 1e-6f,
                       .output = v.out("output"),
                       .reciprocal = v.out("reciprocal")},
                stream);
  });
  c.step("RotaryBackward", 6 * pairs,
         [layout = o.layout, normalised = o.normalised, accumulate = o.accumulate](Operands& v, Backend& backend,
                                                                                   Stream& stream) {
           backend.run(RotaryBackward{.layout = layout,
                                      .gradOutput = v.in("gradOutput"),
                                      .positions = v.in("positions"),
                                      .frequencies = v.in("frequencies"),
                                      .input = normalised ? v.in("input") : ConstTensorView(),
                                      .queryWeight = v.in("queryWeight"),
                                      .keyWeight = v.in("keyWeight"),
                                      .reciprocal = v.in("reciprocal"),
                                      .gradInput = v.out("gradInput"),
                                      .gradQueryWeight = v.out("gradQueryWeight"),
                                      .gradKeyWeight = v.out("gradKeyWeight"),
                                      .accumulate = accumulate},
                       stream);
         });
  // An angle in float32 is wrong by 6e-8 of itself.
  c.tolerance(1e-5 + 1e-7 * static_cast<double>(o.positions), 1e-2);
  if (!o.accumulate) {
    c.loss("output", "gradOutput").derivative("input", "gradInput");
    if (o.normalised) c.derivative("queryWeight", "gradQueryWeight").derivative("keyWeight", "gradKeyWeight");
  }
  return c;
}

}  // namespace

void addRotaryCases(Registry& registry) {
  for (const Options& options : {
           Options{1, {1, 1, 2}},
           Options{3, {6, 2, 64}},
           Options{17, {9, 3, 80}, false, true},
           Options{5, {4, 4, 96}},
           Options{3, {2, 1, 128}, false, true},
           Options{17, {3, 3, 16}, false, false, false, 4096},
           Options{7, {2, 2, 6}, false, true},
           Options{1, {1, 1, 16}, true},
           Options{17, {6, 2, 64}, true},
           Options{5, {9, 3, 80}, true, false, true},
           Options{3, {4, 1, 128}, true},
           Options{7, {2, 1, 10}, true},
           Options{0, {4, 2, 16}, true},
           // Heads as wide as a warp of a GPU and wider; few heads, so that a block takes many rows, and several turns.
           Options{3, {2, 1, 256}, true, false, true},
           Options{2, {1, 1, 456}, true, false, true},
           Options{53, {1, 1, 16}, true, false, true},
           Options{150, {1, 1, 16}, true, false, true},
           Options{53, {3, 1, 24}, false, true, true},
           Options{0, {4, 2, 16}},
       }) {
    registry.cases.push_back(makeCase(options));
  }
  registry.timed.push_back(makeCase({1024, {12, 4, 64}, false, true}));
  registry.timed.push_back(makeCase({1024, {16, 8, 128}, true}));
}

}  // namespace tandem::kernels::test
