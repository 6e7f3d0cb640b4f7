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
  void adapt(Node node) {
    ++adapted_;
    const TensorId input = node.inputs[0], output = node.outputs[1];
    const std::string weight = program_.tensor(node.inputs[1]).name;
    const std::string name = program_.tensor(output).name;
    const DType type = program_.tensor(output).type;
    const Shape inputShape = program_.tensor(input).shape, outputShape = program_.tensor(output).shape;
    Shape narrow = inputShape;
    narrow[narrow.rank() - 1] = adapters_.rank;
    const TensorId a =
        program_.addTensor(adapterName(weight, 'a'), {adapters_.rank, inputShape.last()}, type, Role::parameter);
    const TensorId b =
        program_.addTensor(adapterName(weight, 'b'), {outputShape.last(), adapters_.rank}, type, Role::parameter);

    const TensorId base = activation(name + ".base", outputShape, type);
    node.outputs[1] = base;
    program_.nodes().push_back(node);
    TensorId seen = input;
    if (adapters_.dropout > 0) {
      seen = activation(name + ".dropped", inputShape, type);
      const DropoutAttributes drops{.rate = adapters_.dropout,
                                    .factor = 1 / (1 - adapters_.dropout),
                                    .purpose = static_cast<std::uint32_t>(adapted_)};
      program_.addNode(Operator::dropout, {input, keysFor(inputShape[0])}, {seen}, drops);
    }
    const TensorId inner = activation(name + ".inner", narrow, type);
    program_.addNode(Operator::linear, {seen, a, none}, {none, inner}, LinearAttributes{});
    const TensorId scaled = activation(name + ".scaled", narrow, type);
    program_.addNode(Operator::dropout, {inner, none}, {scaled}, DropoutAttributes{.factor = adapters_.scale});
    const TensorId change = activation(name + ".change", outputShape, type);
    program_.addNode(Operator::linear, {scaled, b, none}, {none, change}, LinearAttributes{});
    program_.addNode(Operator::add, {base, change}, {output});
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
