#include <algorithm>

#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

struct Options {
  std::int64_t batch, time, vocabulary, width;
  bool positions = false, accumulate = false;
  // Tokens come from the first of the vocabulary alone; 0: from all of it.
  std::int64_t used = 0;
  // Rows of the whole tables before those that are here; -1: the tables are whole.
  std::int64_t before = -1;
};

Case makeCase(const Options& o) {
  const double elements = static_cast<double>(o.batch * o.time * o.width);
  Case c("embedding", label({{"batch", o.batch}, {"time", o.time}, {"vocabulary", o.vocabulary}, {"width", o.width}}) +
                          (o.positions ? "_positions" : "") + (o.accumulate ? "_accumulate" : "") +
                          (o.before >= 0 ? "_partFrom" + std::to_string(o.before) : "") +
                          (o.used > 0 ? "_used" + std::to_string(o.used) : ""));
  // Of a part, some indices are before it and some behind.
  const std::int64_t around = o.before >= 0 ? 2 * o.before + 3 : 0;
  const TablePart part{o.before >= 0, std::max<std::int64_t>(o.before, 0), std::max<std::int64_t>(o.before, 0)};
  c.index("tokens", {o.batch, o.time}, uniformIndex((o.used > 0 ? o.used : o.vocabulary) + around));
  c.table("weight", {o.vocabulary, o.width}, normal());
  c.result("output", {o.batch, o.time, o.width});
  c.tensor("gradOutput", {o.batch, o.time, o.width}, normal());
  const auto gradient = [&](const std::string& name, const Shape& shape) {
    if (o.accumulate) {
      c.single(name, shape, normal());
    } else {
      c.result(name, shape, Storage::single);
    }
  };
  gradient("gradWeight", {o.vocabulary, o.width});
  if (o.positions) {
    c.index("positions", {o.batch, o.time}, uniformIndex(o.time + 2 + around));
    c.table("positionWeight", {o.time + 2, o.width}, normal());
    gradient("gradPositionWeight", {o.time + 2, o.width});
  }
  c.step("Embedding", o.positions ? elements : 0, [part](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Embedding{.tokens = v.in("tokens"),
                          .positions = v.in("positions"),
                          .weight = v.in("weight"),
                          .positionWeight = v.in("positionWeight"),
                          .output = v.out("output"),
                          .part = part},
                stream);
  });
  c.step("EmbeddingBackward", elements,
         [part, accumulate = o.accumulate](Operands& v, Backend& backend, Stream& stream) {
           backend.run(EmbeddingBackward{.tokens = v.in("tokens"),
                                         .positions = v.in("positions"),
                                         .gradOutput = v.in("gradOutput"),
                                         .gradWeight = v.out("gradWeight"),
                                         .gradPositionWeight = v.out("gradPositionWeight"),
                                         .accumulateWeight = accumulate,
                                         .accumulatePositionWeight = accumulate,
                                         .part = part},
                       stream);
         });
  if (!o.accumulate) {
    c.loss("output", "gradOutput").derivative("weight", "gradWeight");
    if (o.positions) c.derivative("positionWeight", "gradPositionWeight");
  }
  return c;
}

}  // namespace

void addEmbeddingCases(Registry& registry) {
  for (const Options& options : {
           Options{1, 1, 1, 1},
           Options{1, 3, 5, 3, true},
           Options{2, 17, 5, 17, true},
           Options{2, 17, 65, 65},
           Options{3, 5, 1001, 96, true, true},
           Options{1, 65, 97, 128, false, true},
           Options{0, 4, 7, 16, true},
           // A part of the tables.
           Options{2, 17, 31, 17, true, false, 0, 0},
           Options{2, 17, 31, 24, false, true, 0, 20},
           Options{1, 130, 8, 33, true, true, 0, 3},
           Options{1, 5, 2, 8, true, false, 0, 1000},
           // Runs of one token as long as everything, longer and shorter than what a block adds up; a sum in several
           // parts, tokens of 18 bits, and more rows than are sorted at once.
           Options{1, 97, 1, 8, false, true},
           Options{2, 70, 300, 24, false, true, 2},
           Options{1, 24, 150000, 1, false, true},
           Options{1, 4200, 300, 4, false, true},
           Options{1, 40, 9, 2056, false, true},
       }) {
    registry.cases.push_back(makeCase(options));
  }
  registry.timed.push_back(makeCase({4, 256, 50257, 768, true}));
}

}  // namespace tandem::kernels::test
