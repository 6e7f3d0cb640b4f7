#include "common/graph/program.h"

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

TEST(Program, findsTensorsByNameAndByRole) {
  const Program program = llamaLike({.layers = 1, .tied = false});
  EXPECT_EQ(program.find("nothing"), none);
  EXPECT_EQ(program.tensor(program.find("losses")).role, Role::output);
  std::vector<std::string> names;
  for (const TensorId id : program.ofRole(Role::parameter)) names.push_back(program.tensor(id).name);
  const std::vector<std::string> expected = {
      "embedding.weight",           "layers.0.norm1.weight", "layers.0.qkv.weight",
      "layers.0.projection.weight", "layers.0.norm2.weight", "layers.0.gateUp.weight",
      "layers.0.down.weight",       "normFinal.weight",      "head.weight"};
  EXPECT_EQ(names, expected);
}

TEST(Program, countsATiedTableOnce) {
  EXPECT_EQ(llamaLike({.tied = false}).parameterCount() - llamaLike({.tied = true}).parameterCount(), 13 * 8);
}

TEST(Program, refusesASecondTensorOfTheSameName) {
  Program program;
  program.addTensor("x", {1}, DType::f32, Role::input);
  expectUsageError([&] { program.addTensor("x", {2}, DType::f32, Role::input); }, {"'x'"});
}

TEST(Program, findsARenamedTensorByItsNewName) {
  Program program;
  const TensorId x = program.addTensor("x", {1}, DType::f32, Role::activation);
  program.tensor(x).name = "hidden";
  EXPECT_EQ(program.find("hidden"), x);
  EXPECT_EQ(program.find("x"), none);
  expectUsageError([&] { program.addTensor("hidden", {1}, DType::f32, Role::activation); }, {"'hidden'"});
}

TEST(Program, textHasALineANodeWithOperandsByName) {
  Program program;
  const TensorId x = program.addTensor("x", {2, 3}, DType::f32, Role::input);
  const TensorId weight = program.addTensor("w", {4, 3}, DType::f32, Role::parameter);
  const TensorId y = program.addTensor("y", {2, 4}, DType::f32, Role::output);
  program.setLayer(1);
  program.addNode(Operator::linear, {x, weight, none}, {none, y}, LinearAttributes{kernels::ActivationKind::geluTanh});
  EXPECT_EQ(program.text(), "   0 layer 1 linear geluTanh: input=x weight=w -> output=y float32[2, 4]\n");
}

TEST(Program, textShowsWhichGradientsAreAddedTo) {
  const std::string text = differentiate(gpt2Like({})).text();
  EXPECT_NE(text.find("gradWeight=embedding.weight.gradient"), std::string::npos) << text;
  EXPECT_NE(text.find("gradWeight+=embedding.weight.gradient"), std::string::npos) << text;
}

}  // namespace
}  // namespace tandem::graph::test
