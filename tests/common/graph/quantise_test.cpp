// Programs that read quantised weights.

#include "common/graph/adapt.h"
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

TEST(Quantise, frozenMatricesAreMadeNumbersAgainForEachReader) {
  const Adapters adapters{.rank = 2,
                          .isChosen = [](const std::string& weight) { return weight.starts_with("layers."); }};
  const Program trained = fuse(differentiate(fuse(adapt(llamaLike({}), adapters))));
  QuantisedParameters parameters;
  std::int64_t readers = 0;
  for (const Node& node : trained.nodes()) {
    for (const TensorId id : node.inputs) {
      if (id == none || trained.tensor(id).role != Role::frozen || !trained.tensor(id).name.starts_with("layers."))
        continue;
      if (node.op != Operator::linear && node.op != Operator::linearBackwardInput) continue;
      parameters[trained.tensor(id).name] = int4;
      ++readers;
    }
  }
  const Program quantised = quantise(trained, parameters);
  check(quantised);
  EXPECT_GT(readers, std::ssize(parameters)) << "the backward pass reads them too";
  EXPECT_EQ(countOf(quantised, Operator::dequantise), readers);
  EXPECT_EQ(countOf(quantised, Operator::quantisedLinear), 0) << "whose inputs are rounded";
  for (const auto& [name, format] : parameters) {
    EXPECT_EQ(quantised.tensor(quantised.find(name)).role, Role::activation) << "takes no memory";
    EXPECT_EQ(quantised.tensor(quantised.find(codesName(name))).role, Role::frozen);
  }
  // One matrix at a time is numbers.
  for (const Node& node : quantised.nodes()) {
    if (node.op == Operator::dequantise) {
      EXPECT_EQ((&node + 1)->inputs[1], node.outputs[0]);
    }
  }
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
