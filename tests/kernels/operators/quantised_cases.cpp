#include "kernels/quantised.h"
#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

struct Options {
  QuantisedFormat format;
  std::int64_t rows, inputs, outputs;
  bool bias = false;
  ActivationKind activation = ActivationKind::none;
};

const char* nameOf(QuantisedFormat format) { return format == QuantisedFormat::int8 ? "int8" : "int4"; }

std::string nameOf(const Options& o) {
  return std::string(nameOf(o.format)) + "_" + label({{"rows", o.rows}, {"inputs", o.inputs}, {"outputs", o.outputs}}) +
         (o.bias ? "_bias" : "") + (o.activation == ActivationKind::none ? "" : "_" + label(o.activation));
}

// Values that a backend which rounds its inputs to int8, in groups of 32 of a row, leaves as they are.
Draw exactInInt8(std::int64_t inputs) {
  return [inputs](base::RandomStream& random, std::vector<double>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i) % inputs;
      const double code = column % quantisedGroup == 0 ? 127 : static_cast<double>(random.nextBelow(255)) - 127;
      all[i] = code / 64;
    }
  };
}

Draw uniform(double low, double high) {
  return [=](base::RandomStream& random, std::vector<double>& all) {
    for (double& value : all) value = low + (high - low) * static_cast<double>(random.nextUniform());
  };
}

// Scales of int4, and minimums that centre the codes roughly.
Draw scalesAndMinimums() {
  return [](base::RandomStream& random, std::vector<double>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool isMinimum = i / quantisedBlock % 2 == 1;
      const double value = 0.01 + 0.02 * static_cast<double>(random.nextUniform());
      all[i] = isMinimum ? -8 * value : value;
    }
  };
}

void addMatrix(Case& c, QuantisedFormat format, std::int64_t outputs, std::int64_t inputs) {
  c.add({"codes", "codes", Storage::codes, codesInMemory(format, outputs, inputs), {}, 0, uniformIndex(256)});
  if (format == QuantisedFormat::int8) {
    c.single("scales", scalesInMemory(format, outputs, inputs), uniform(0.001, 0.003));
  } else {
    c.add({"scales", "scales", Storage::float16, scalesInMemory(format, outputs, inputs), {}, 0, scalesAndMinimums()});
  }
}

QuantisedMatrix matrixOf(Operands& v, QuantisedFormat format, std::int64_t outputs, std::int64_t inputs) {
  return {.format = format, .outputs = outputs, .inputs = inputs, .codes = v.in("codes"), .scales = v.in("scales")};
}

Case makeLinearCase(const Options& o, const char* inputs, Draw input) {
  Case c("quantisedLinear", nameOf(o) + inputs);
  c.tensor("input", {o.rows, o.inputs}, std::move(input));
  addMatrix(c, o.format, o.outputs, o.inputs);
  if (o.bias) c.tensor("bias", {o.outputs}, normal());
  c.result("output", {o.rows, o.outputs});
  c.step("QuantisedLinear", 2 * static_cast<double>(o.rows * o.inputs * o.outputs),
         [o](Operands& v, Backend& backend, Stream& stream) {
           backend.run(QuantisedLinear{.input = v.in("input"),
                                       .weight = matrixOf(v, o.format, o.outputs, o.inputs),
                                       .bias = v.in("bias"),
                                       .activation = o.activation,
                                       .output = v.out("output")},
                       stream);
         });
  return c;
}

Case makeExactCase(const Options& o) { return makeLinearCase(o, "", exactInInt8(o.inputs)); }

// Inputs of any value: what the rounding of inputs may cost.
Case makeRoundedCase(const Options& o) { return makeLinearCase(o, "_rounded", normal()).tolerance(4e-2, 5e-2); }

Case makeEmbeddingCase(QuantisedFormat format, std::int64_t time, std::int64_t vocabulary, std::int64_t width,
                       bool positioned) {
  Case c("quantisedEmbedding", std::string(nameOf(format)) + "_" +
                                   label({{"time", time}, {"vocabulary", vocabulary}, {"width", width}}) +
                                   (positioned ? "_positions" : ""));
  c.index("tokens", {1, time}, uniformIndex(vocabulary));
  addMatrix(c, format, vocabulary, width);
  if (positioned) c.index("positions", {1, time}, uniformIndex(9)).tensor("positionWeight", {9, width}, normal());
  c.result("output", {1, time, width});
  c.step("QuantisedEmbedding", 0, [=](Operands& v, Backend& backend, Stream& stream) {
    backend.run(QuantisedEmbedding{.tokens = v.in("tokens"),
                                   .positions = v.in("positions"),
                                   .weight = matrixOf(v, format, vocabulary, width),
                                   .positionWeight = v.in("positionWeight"),
                                   .output = v.out("output")},
                stream);
  });
  return c;
}

Case makeDequantiseCase(QuantisedFormat format, std::int64_t outputs, std::int64_t inputs) {
  Case c("dequantise", std::string(nameOf(format)) + "_" + label({{"outputs", outputs}, {"inputs", inputs}}));
  addMatrix(c, format, outputs, inputs);
  c.result("output", {outputs, inputs});
  c.step("Dequantise", 0, [=](Operands& v, Backend& backend, Stream& stream) {
    backend.run(Dequantise{.matrix = matrixOf(v, format, outputs, inputs), .output = v.out("output")}, stream);
  });
  return c;
}

}  // namespace

void addQuantisedCases(Registry& registry) {
  using enum ActivationKind;
  for (const QuantisedFormat format : {QuantisedFormat::int8, QuantisedFormat::int4}) {
    // One to seven rows and more, whole groups and blocks and parts of them.
    for (const Options& options : {
             Options{format, 1, 1, 1, true},
             Options{format, 1, 96, 24},
             Options{format, 1, 65, 35, true, geluTanh},
             Options{format, 2, 32, 8, true},
             Options{format, 3, 33, 17},
             Options{format, 4, 192, 9},
             Options{format, 7, 31, 16, true, geluErf},
             Options{format, 45, 160, 40, true},
             Options{format, 0, 32, 8},
         }) {
      registry.cases.push_back(makeExactCase(options));
    }
    registry.cases.push_back(makeRoundedCase({format, 1, 320, 24}));
    registry.cases.push_back(makeRoundedCase({format, 5, 100, 33, true}));
    registry.cases.push_back(makeEmbeddingCase(format, 17, 29, 80, false));
    registry.cases.push_back(makeEmbeddingCase(format, 3, 8, 33, true));
    registry.cases.push_back(makeDequantiseCase(format, 1, 1));
    registry.cases.push_back(makeDequantiseCase(format, 19, 70));
    registry.timed.push_back(makeExactCase({format, 1, 576, 3072}));
    registry.timed.push_back(makeExactCase({format, 256, 576, 3072}));
    registry.timed.push_back(makeExactCase({format, 256, 1536, 576}));
  }
}

}  // namespace tandem::kernels::test
