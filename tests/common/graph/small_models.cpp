#include "tests/common/graph/small_models.h"

#include <cmath>

namespace tandem::graph::test {
namespace {

class Builder {
 public:
  explicit Builder(const SmallModel& model) : model_(model) {
    for (const char* name : {"tokens", "positions", "documentStart", "targets"}) {
      program.addTensor(name, {model.batch, model.time}, DType::i32, Role::input);
    }
  }

  TensorId input(const std::string& name) const { return program.find(name); }
  TensorId parameter(const std::string& name, const Shape& shape) {
    const TensorId found = program.find(name);
    return found == none ? program.addTensor(name, shape, model_.type, Role::parameter) : found;
  }
  TensorId rows(const std::string& name, std::int64_t width) {
    return program.addTensor(name, {model_.batch, model_.time, width}, model_.type, Role::activation);
  }

  TensorId norm(const std::string& name, TensorId x, kernels::NormKind kind) {
    const bool layer = kind == kernels::NormKind::layer;
    const std::int64_t width = model_.width;
    const TensorId weight = parameter(name + ".weight", {width});
    const TensorId bias = layer ? parameter(name + ".bias", {width}) : none;
    const TensorId output = rows(name, width);
    const Shape statistics{model_.batch, model_.time};
    const TensorId mean = layer ? program.addTensor(name + ".mean", statistics, DType::f32, Role::activation) : none;
    const TensorId reciprocal = program.addTensor(name + ".reciprocal", statistics, DType::f32, Role::activation);
    program.addNode(Operator::norm, {x, none, weight, bias}, {none, output, mean, reciprocal},
                    NormAttributes{kind, 1e-5f});
    return output;
  }
  TensorId linear(const std::string& name, TensorId x, std::int64_t outputs, bool bias) {
    const std::int64_t inputs = program.tensor(x).shape.last();
    const TensorId weight = parameter(name + ".weight", {outputs, inputs});
    const TensorId shift = bias ? parameter(name + ".bias", {outputs}) : none;
    const TensorId output = rows(name, outputs);
    program.addNode(Operator::linear, {x, weight, shift}, {none, output}, LinearAttributes{});
    return output;
  }
  TensorId activation(const std::string& name, TensorId x, std::int64_t width, kernels::ActivationKind kind) {
    const TensorId output = rows(name, width);
    program.addNode(Operator::activation, {x}, {output}, ActivationAttributes{kind});
    return output;
  }
  TensorId add(const std::string& name, TensorId left, TensorId right) {
    const TensorId output = rows(name, model_.width);
    program.addNode(Operator::add, {left, right}, {output});
    return output;
  }
  kernels::HeadLayout layout() const { return {model_.heads, model_.kvHeads, model_.width / model_.heads}; }
  TensorId rotary(const std::string& name, TensorId qkv) {
    RotaryAttributes attributes;
    attributes.layout = layout();
    const std::int64_t headSize = attributes.layout.headSize;
    for (std::int64_t pair = 0; pair < headSize / 2; ++pair) {
      attributes.frequencies.push_back(
          std::pow(10.0f, -2.0f * static_cast<float>(pair) / static_cast<float>(headSize)));
    }
    TensorId queryWeight = none, keyWeight = none, reciprocal = none;
    if (model_.queryKeyNorm) {
      queryWeight = parameter(name + ".query.weight", {headSize});
      keyWeight = parameter(name + ".key.weight", {headSize});
      reciprocal = program.addTensor(name + ".reciprocal", {model_.batch, model_.time, model_.heads + model_.kvHeads},
                                     DType::f32, Role::activation);
    }
    const TensorId output = rows(name, attributes.layout.width());
    program.addNode(Operator::rotary, {qkv, input("positions"), queryWeight, keyWeight}, {output, reciprocal},
                    attributes);
    return output;
  }
  TensorId attention(const std::string& name, TensorId qkv) {
    const TensorId output = rows(name, model_.width);
    const TensorId logSumExp =
        program.addTensor(name + ".logSumExp", {model_.batch, model_.heads, model_.time}, DType::f32, Role::activation);
    const float scale = 1.0f / std::sqrt(static_cast<float>(layout().headSize));
    program.addNode(Operator::attention, {qkv, input("documentStart")}, {output, logSumExp},
                    AttentionAttributes{layout(), model_.window, scale});
    return output;
  }
  void loss(TensorId x) {
    const TensorId weight =
        model_.tied ? program.find("embedding.weight") : parameter("head.weight", {model_.vocabulary, model_.width});
    const TensorId losses = program.addTensor("losses", {model_.batch, model_.time}, DType::f32, Role::output);
    program.addNode(Operator::linearCrossEntropy, {x, weight, input("targets"), none}, {losses, none, none});
  }

  Program program;

 private:
  SmallModel model_;
};

}  // namespace

Program gpt2Like(const SmallModel& model) {
  Builder build(model);
  const auto layer = kernels::NormKind::layer;
  const TensorId weight = build.parameter("embedding.weight", {model.vocabulary, model.width});
  const TensorId positionWeight = build.parameter("position.weight", {model.time, model.width});
  TensorId x = build.rows("embedded", model.width);
  build.program.addNode(Operator::embedding, {build.input("tokens"), weight, build.input("positions"), positionWeight},
                        {x}, EmbeddingAttributes{});
  for (std::int64_t index = 0; index < model.layers; ++index) {
    const std::string name = "h" + std::to_string(index) + ".";
    build.program.setLayer(static_cast<std::int32_t>(index));
    TensorId y = build.norm(name + "norm1", x, layer);
    y = build.linear(name + "qkv", y, build.layout().width(), true);
    y = build.attention(name + "attention", y);
    y = build.linear(name + "projection", y, model.width, true);
    x = build.add(name + "middle", x, y);
    y = build.norm(name + "norm2", x, layer);
    y = build.linear(name + "up", y, model.hidden, true);
    y = build.activation(name + "activation", y, model.hidden, model.activation);
    y = build.linear(name + "down", y, model.width, true);
    x = build.add(name + "end", x, y);
  }
  build.program.setLayer(-1);
  build.loss(build.norm("normFinal", x, layer));
  return build.program;
}

Program llamaLike(const SmallModel& model) {
  Builder build(model);
  const auto rms = kernels::NormKind::rms;
  const TensorId weight = build.parameter("embedding.weight", {model.vocabulary, model.width});
  TensorId x = build.rows("embedded", model.width);
  build.program.addNode(Operator::embedding, {build.input("tokens"), weight, none, none}, {x}, EmbeddingAttributes{});
  for (std::int64_t index = 0; index < model.layers; ++index) {
    const std::string name = "layers." + std::to_string(index) + ".";
    build.program.setLayer(static_cast<std::int32_t>(index));
    TensorId y = build.norm(name + "norm1", x, rms);
    y = build.linear(name + "qkv", y, build.layout().width(), false);
    y = build.rotary(name + "rotary", y);
    y = build.attention(name + "attention", y);
    y = build.linear(name + "projection", y, model.width, false);
    x = build.add(name + "middle", x, y);
    y = build.norm(name + "norm2", x, rms);
    y = build.linear(name + "gateUp", y, 2 * model.hidden, false);
    y = build.activation(name + "activation", y, model.hidden, kernels::ActivationKind::swiglu);
    y = build.linear(name + "down", y, model.width, false);
    x = build.add(name + "end", x, y);
  }
  build.program.setLayer(-1);
  build.loss(build.norm("normFinal", x, rms));
  return build.program;
}

}  // namespace tandem::graph::test
