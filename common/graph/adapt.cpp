#include "common/graph/adapt.h"

#include <utility>

#include "common/base/error.h"

namespace tandem::graph {
namespace {

class Adapter {
 public:
  Adapter(const Program& forward, const Adapters& adapters) : adapters_(adapters), program_(forward) {}

  Program run() {
    for (const TensorId id : program_.ofRole(Role::parameter)) program_.tensor(id).role = Role::frozen;
    const std::vector<Node> nodes = std::exchange(program_.nodes(), {});
    for (const Node& node : nodes) {
      const bool chosen = node.op == Operator::linear && adapters_.isChosen(program_.tensor(node.inputs[1]).name);
      program_.setLayer(node.layer);
      if (chosen) {
        adapt(node);
      } else {
        program_.nodes().push_back(node);
      }
    }
    program_.setLayer(-1);
    if (adapted_ == 0) {
      throw base::Error(base::ErrorKind::usage,
                        "no linear of the model is chosen for adapters: nothing would be learned");
    }
    return program_;
  }

 private:
  // What is known of a linear that gets an adapter.
  struct Target {
    Node node;
    TensorId input, output;
    std::string name, weight;  // of the output and of the weight
    DType type;
    Shape inputShape, outputShape;
  };

  void adapt(const Node& node) {
    ++adapted_;
    const TensorId input = node.inputs[0], output = node.outputs[1];
    const Tensor result = program_.tensor(output);
    const Target target{.node = node,
                        .input = input,
                        .output = output,
                        .name = result.name,
                        .weight = program_.tensor(node.inputs[1]).name,
                        .type = result.type,
                        .inputShape = program_.tensor(input).shape,
                        .outputShape = result.shape};
    const std::int64_t inputs = target.inputShape.last(), outputs = target.outputShape.last();
    const TensorId a = parameter(target, 'a', {adapters_.rank, inputs});
    const TensorId b = parameter(target, 'b', {outputs, adapters_.rank});
    adapters_.decomposed ? addDecomposed(target, a, b) : addChange(target, a, b);
  }

  void addChange(const Target& target, TensorId a, TensorId b) {
    const TensorId base = linear(target, ".base", target.input, target.node.inputs[2]);
    const TensorId change = changeOf(target, dropped(target), a, b);
    program_.addNode(Operator::add, {base, change}, {target.output});
  }

  // With dropout PEFT (peft/tuners/lora/dora.py) lets it reach all that the adapter changes, and leaves the base alone:
  //   output = W x + bias + (stretch - 1) W d(x) + stretch scale B A d(x),   stretch = (|W| + m) / |W + scale B A|,
  // which is the same as W x + bias - W d(x) + stretch (W d(x) + scale B A d(x)). It costs a second product with W.
  void addDecomposed(const Target& target, TensorId a, TensorId b) {
    const TensorId weight = target.node.inputs[1], bias = target.node.inputs[2];
    const std::int64_t outputs = target.outputShape.last();
    const TensorId gain = parameter(target, 'm', {outputs});
    // B A is the product that takes a gradient B of A's outputs back to its inputs.
    const TensorId product = activation(target.name + ".product", program_.tensor(weight).shape, target.type);
    program_.addNode(Operator::linearBackwardInput, {b, a, none}, {product}, LinearAttributes{});
    const TensorId norms = activation(target.name + ".norms", {outputs}, DType::f32);
    const TensorId changedNorms = activation(target.name + ".changed_norms", {outputs}, DType::f32);
    program_.addNode(Operator::rowNorms, {weight, product}, {norms, changedNorms}, RowNormsAttributes{adapters_.scale});

    const TensorId seen = dropped(target);
    const TensorId base = linear(target, ".base", seen, none);
    const TensorId change = changeOf(target, seen, a, b);
    const TensorId sum = activation(target.name + ".directed", target.outputShape, target.type);
    program_.addNode(Operator::add, {base, change}, {sum});
    if (seen == target.input) {
      program_.addNode(Operator::rescale, {sum, gain, norms, changedNorms, bias}, {target.output});
      return;
    }
    const TensorId rescaled = activation(target.name + ".rescaled", target.outputShape, target.type);
    program_.addNode(Operator::rescale, {sum, gain, norms, changedNorms, none}, {rescaled});
    const TensorId negative = activation(target.name + ".negative", target.outputShape, target.type);
    program_.addNode(Operator::dropout, {base, none}, {negative}, DropoutAttributes{.factor = -1});
    const TensorId difference = activation(target.name + ".difference", target.outputShape, target.type);
    program_.addNode(Operator::add, {rescaled, negative}, {difference});
    const TensorId whole = linear(target, ".whole", target.input, bias);
    program_.addNode(Operator::add, {whole, difference}, {target.output});
  }

  TensorId parameter(const Target& target, char which, const Shape& shape) {
    return program_.addTensor(adapterName(target.weight, which), shape, target.type, Role::parameter);
  }

  // The frozen linear of an input, named after the target's output.
  TensorId linear(const Target& target, const char* ending, TensorId input, TensorId bias) {
    Node node = target.node;
    const TensorId output = activation(target.name + ending, target.outputShape, target.type);
    node.inputs[0] = input;
    node.inputs[2] = bias;
    node.outputs[1] = output;
    program_.nodes().push_back(node);
    return output;
  }

  // The input as the adapter sees it.
  TensorId dropped(const Target& target) {
    if (adapters_.dropout <= 0) return target.input;
    const TensorId seen = activation(target.name + ".dropped", target.inputShape, target.type);
    const DropoutAttributes drops{.rate = adapters_.dropout,
                                  .factor = 1 / (1 - adapters_.dropout),
                                  .purpose = static_cast<std::uint32_t>(adapted_)};
    program_.addNode(Operator::dropout, {target.input, keysFor(target.inputShape[0])}, {seen}, drops);
    return seen;
  }

  TensorId changeOf(const Target& target, TensorId seen, TensorId a, TensorId b) {
    Shape narrow = target.inputShape;
    narrow[narrow.rank() - 1] = adapters_.rank;
    const TensorId inner = activation(target.name + ".inner", narrow, target.type);
    program_.addNode(Operator::linear, {seen, a, none}, {none, inner}, LinearAttributes{});
    const TensorId scaled = activation(target.name + ".scaled", narrow, target.type);
    program_.addNode(Operator::dropout, {inner, none}, {scaled}, DropoutAttributes{.factor = adapters_.scale});
    const TensorId change = activation(target.name + ".change", target.outputShape, target.type);
    program_.addNode(Operator::linear, {scaled, b, none}, {none, change}, LinearAttributes{});
    return change;
  }

  TensorId activation(const std::string& name, const Shape& shape, DType type) {
    return program_.addTensor(name, shape, type, Role::activation);
  }

  TensorId keysFor(std::int64_t batch) {
    const TensorId found = program_.find("dropout_keys");
    return found != none ? found : program_.addTensor("dropout_keys", {batch, 2}, DType::i32, Role::input);
  }

  const Adapters& adapters_;
  Program program_;
  int adapted_ = 0;
};

}  // namespace

Program adapt(const Program& forward, const Adapters& adapters) {
  TANDEM_ASSERT(adapters.rank > 0 && adapters.dropout >= 0 && adapters.dropout < 1, "adapters have sizes that can be");
  return Adapter(forward, adapters).run();
}

std::string adapterName(const std::string& weight, char which) {
  constexpr std::string_view ending = ".weight";
  TANDEM_ASSERT(weight.ends_with(ending), "the weight of a linear is named so");
  return weight.substr(0, weight.size() - ending.size()) + ".lora_" + which;
}

}  // namespace tandem::graph
