// Programs that read quantised weights.

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

using enum kernels::QuantisedFormat;

// Every matrix of linear layers in int4, the tables in int8.
QuantisedParameters allMatrices(const Program& program) {
  QuantisedParameters parameters;
  for (const Node& node : program.nodes()) {
    if (node.op == Operator::linear) parameters[program.tensor(node.inputs[1]).name] = int4;
    if (node.op == Operator::embedding || node.op == Operator::linearCrossEntropy) {
      parameters[program.tensor(node.inputs[1]).name] = int8;
    }
  }
  return parameters;
}

TEST(Quantise, everyReaderOfAMatrixReadsCodesAndScales) {
  for (const Program& program : {gpt2Like({}), fuse(gpt2Like({})), llamaLike({.tied = false})}) {
    const QuantisedParameters parameters = allMatrices(program);
    const Program quantised = quantise(program, parameters);
    check(quantised);
    EXPECT_EQ(countOf(quantised, Operator::linear), 0);
    EXPECT_EQ(countOf(quantised, Operator::quantisedLinear), countOf(program, Operator::linear));
    EXPECT_EQ(countOf(quantised, Operator::quantisedEmbedding), 1);
    EXPECT_EQ(countOf(quantised, Operator::dequantise), 1);
    for (const Node& node : quantised.nodes()) {
      for (const TensorId id : node.inputs) {
        if (id != none) {
          EXPECT_FALSE(parameters.contains(quantised.tensor(id).name));
        }
      }
    }
    for (const auto& [name, format] : parameters) {
      EXPECT_NE(quantised.find(codesName(name)), none);
      EXPECT_EQ(quantised.tensor(quantised.find(scalesName(name))).type, kernels::scalesType(format));
    }
  }
}

TEST(Quantise, theEpilogueOfALinearStays) {
  const Program program = fuse(gpt2Like({.activation = kernels::ActivationKind::geluErf}));
  const Program quantised = quantise(program, allMatrices(program));
  int activated = 0;
  for (const Node& node : quantised.nodes()) {
    if (node.op != Operator::quantisedLinear) continue;
    activated += std::get<QuantisedAttributes>(node.attributes).activation == kernels::ActivationKind::geluErf;
    EXPECT_NE(node.inputs[3], none) << "the bias";
  }
  EXPECT_EQ(activated, 2);
}

TEST(Quantise, parametersThatAreNotNamedStayAsTheyAre) {
  const Program program = llamaLike({});
  EXPECT_EQ(quantise(program, {}).text(), program.text());
}

TEST(Quantise, whatHasNoQuantisedFormIsRefusedByName) {
  const Program program = gpt2Like({});
  for (const Node& node : program.nodes()) {
    if (node.op != Operator::norm) continue;
    const std::string weight = program.tensor(node.inputs[2]).name;
    expectUsageError([&] { (void)quantise(program, {{weight, int8}}); }, {weight.c_str(), "norm"});
    return;
  }
  FAIL() << "the model has no norm";
}

TEST(Quantise, aQuantisedProgramCannotBeTrained) {
  const Program program = quantise(gpt2Like({}), allMatrices(gpt2Like({})));
  expectUsageError([&] { (void)differentiate(program); }, {"cannot be trained through"});
}

TEST(Quantise, codesOfAnotherShapeAreRefused) {
  Program program = quantise(llamaLike({}), allMatrices(llamaLike({})));
  for (const Node& node : program.nodes()) {
    if (node.op == Operator::quantisedLinear) program.tensor(node.inputs[1]).shape[1] += 1;
  }
  expectUsageError([&] { check(program); }, {"quantisedLinear", "codes"});
}

}  // namespace
}  // namespace tandem::graph::test
