#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

// Norms follow the matrix, but no gradient flows through them.
Case makeNorms(std::int64_t rows, std::int64_t width, Draw change, const std::string& note = {}) {
  Case c("rowNorms", label({{"rows", rows}, {"width", width}}) + note);
  c.tensor("matrix", {rows, width}, normal()).tensor("change", {rows, width}, std::move(change));
  c.result("norms", {rows}, Storage::single).result("changedNorms", {rows}, Storage::single);
  c.step("RowNorms", 6 * static_cast<double>(rows * width), [](Operands& v, Backend& backend, Stream& stream) {
    backend.run(RowNorms{.matrix = v.in("matrix"),
                         .change = v.in("change"),
                         .factor = 1.75f,
                         .norms = v.out("norms"),
                         .changedNorms = v.out("changedNorms")},
                stream);
  });
  return c;
}

struct Options {
  std::int64_t rows, width;
  bool bias = false, accumulate = false, inPlace = false;
  Draw changedNorms = normal(0.2, 2);
  std::string note = {};
};

std::string nameOf(const Options& o) {
  return label({{"rows", o.rows}, {"width", o.width}}) + (o.bias ? "_bias" : "") + (o.accumulate ? "_accumulate" : "") +
         (o.inPlace ? "_inPlace" : "") + o.note;
}

void addOperands(Case& c, const Options& o) {
  const Shape all{o.rows, o.width}, one{o.width};
  c.tensor("input", all, normal()).tensor("gain", one, normal(0.3)).tensor("gradOutput", all, normal());
  c.single("norms", one, normal(0.2, 2)).single("changedNorms", one, o.changedNorms);
  if (o.bias) c.tensor("bias", one, normal());
  c.result("output", all);
  if (o.inPlace) {
    c.inPlace("gradInput", "gradOutput");
  } else {
    c.result("gradInput", all);
  }
  if (o.accumulate) {
    c.single("gradGain", one, normal());
  } else {
    c.result("gradGain", one, Storage::single);
  }
}

Case makeCase(const Options& o) {
  Case c("rescale", nameOf(o));
  addOperands(c, o);
  const double elements = static_cast<double>(o.rows * o.width);
  c.step("Rescale", 2 * elements, [](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Rescale{.input = v.in("input"),
                        .gain = v.in("gain"),
                        .norms = v.in("norms"),
                        .changedNorms = v.in("changedNorms"),
                        .bias = v.in("bias"),
                        .output = v.out("output")},
                stream);
  });
  c.step("RescaleBackward", 3 * elements, [accumulate = o.accumulate](Operands& v, Backend& backend, Stream& stream) {
    backend.run(RescaleBackward{.gradOutput = v.in("gradOutput"),
                                .input = v.in("input"),
                                .gain = v.in("gain"),
                                .norms = v.in("norms"),
                                .changedNorms = v.in("changedNorms"),
                                .gradInput = v.out("gradInput"),
                                .gradGain = v.out("gradGain"),
                                .accumulate = accumulate},
                stream);
  });
  if (!o.accumulate && !o.inPlace) {
    c.loss("output", "gradOutput").derivative("input", "gradInput").derivative("gain", "gradGain");
  }
  return c;
}

}  // namespace

void addRescaleCases(Registry& registry) {
  for (const auto& [rows, width] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {3, 17}, {0, 16}, {5, 96}, {33, 769}, {2, 5000}}) {
    registry.cases.push_back(makeNorms(rows, width, normal()));
  }
  registry.cases.push_back(makeNorms(5, 300, constant(0), "_unchanged"));
  for (const Options& options : {
           Options{1, 1},
           Options{3, 17, true},
           Options{17, 65},
           Options{17, 65, true, true},
           Options{5, 96, false, false, true},
           Options{300, 264, true},
           Options{0, 16, true},
           // Rows of zeros in the matrix: their columns stay as they are, and no length is learned for them.
           Options{9, 40, true, false, false, constant(0), "_zeros"},
       }) {
    registry.cases.push_back(makeCase(options));
  }
  registry.timed.push_back(makeNorms(4096, 4096, normal()));
  registry.timed.push_back(makeCase({1024, 4096}));
}

}  // namespace tandem::kernels::test
