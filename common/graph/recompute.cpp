// Recomputation: activations that are cheap to make again, or all within a layer, die after the forward pass and are
// made again by copies of their nodes right before the backward node that reads them first.

#include "common/base/error.h"
#include "common/graph/detail/operator_entry.h"
#include "common/graph/passes.h"

namespace tandem::graph {
namespace {

using detail::hasInput;
using detail::hasOutput;
using kernels::ActivationKind;

constexpr std::size_t nobody = static_cast<std::size_t>(-1);

// The node with which the forward pass ends; nobody in a program without a backward pass.
std::size_t lossOf(const Program& program) {
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    const bool hasGradients = node.op != Operator::linearCrossEntropy || hasInput(node, 3);
    if (endsForwardPass(node) && hasGradients) return index;
  }
  return nobody;
}

class Recomputer {
 public:
  Recomputer(const Program& program, std::size_t loss, Recompute policy)
      : source_(program),
        result_(program),
        loss_(loss),
        producer_(program.tensors().size(), nobody),
        again_(program.tensors().size(), none) {
    for (std::size_t index = 0; index <= loss; ++index) {
      for (const TensorId id : node(index).outputs) {
        if (id != none) producer_[at(id)] = index;
      }
    }
    kept_ = policy == Recompute::full ? keepLayerInputs() : keepAllButTheCheap();
  }

  Program run() {
    result_.nodes().clear();
    for (std::size_t index = 0; index < source_.nodes().size(); ++index) {
      Node copy = node(index);
      if (index > loss_) {
        for (TensorId& id : copy.inputs) id = available(id);
      }
      result_.nodes().push_back(std::move(copy));
    }
    result_.setLayer(-1);
    dropUnreadPreActivations();
    return std::move(result_);
  }

 private:
  static std::size_t at(TensorId id) { return static_cast<std::size_t>(id); }
  const Node& node(std::size_t index) const { return source_.nodes()[index]; }
  bool isForward(TensorId id) const { return producer_[at(id)] != nobody; }
  std::int32_t layerOf(TensorId id) const { return node(producer_[at(id)]).layer; }

  // Selective: outputs of norms, activations and rescalings go, and what was gathered of them; matrix products,
  // attention and statistics stay.
  std::vector<bool> keepAllButTheCheap() const {
    std::vector<bool> kept(source_.tensors().size(), true);
    for (std::size_t index = 0; index <= loss_; ++index) {
      const Node& made = node(index);
      if (made.op == Operator::norm) kept[at(made.outputs[1])] = false;
      if (made.op == Operator::activation) kept[at(made.outputs[0])] = false;
      if (made.op == Operator::rescale) kept[at(made.outputs[0])] = false;
      if (made.op == Operator::gatherRows) kept[at(made.outputs[0])] = false;
      if (made.op == Operator::linear && hasOutput(made, 0)) kept[at(made.outputs[1])] = false;
    }
    return kept;
  }

  // A norm that opens a layer by adding up what the layer before has left: its sum is the layer's one input.
  bool opensLayer(const Node& reader) const {
    if (reader.op != Operator::norm || !hasInput(reader, 1)) return false;
    for (const TensorId id : {reader.inputs[0], reader.inputs[1]}) {
      if (!isForward(id) || layerOf(id) == reader.layer) return false;
    }
    return true;
  }

  // Full: what crosses into a layer stays, and all that is made outside of layers.
  std::vector<bool> keepLayerInputs() const {
    std::vector<bool> kept(source_.tensors().size(), true);
    for (std::size_t id = 0; id < kept.size(); ++id) {
      kept[id] = producer_[id] == nobody || node(producer_[id]).layer < 0;
    }
    for (std::size_t index = 0; index <= loss_; ++index) {
      const Node& reader = node(index);
      if (opensLayer(reader)) {
        kept[at(reader.outputs[0])] = true;
        continue;
      }
      for (const TensorId id : reader.inputs) {
        if (id != none && isForward(id) && layerOf(id) != reader.layer) kept[at(id)] = true;
      }
    }
    return kept;
  }

  // The tensor that a backward node reads in place of `id`; makes it again when it is gone.
  TensorId available(TensorId id) {
    if (id == none || !isForward(id)) return id;
    if (again_[at(id)] == none && kept_[at(id)]) return id;
    if (again_[at(id)] == none) makeAgain(node(producer_[at(id)]));
    return again_[at(id)];
  }

  void makeAgain(Node copy) {
    if (copy.op == Operator::linear && hasOutput(copy, 0) && kept_[at(copy.outputs[0])]) {
      const ActivationKind kind = std::get<LinearAttributes>(copy.attributes).activation;
      copy.op = Operator::activation;
      copy.attributes = ActivationAttributes{kind};
      copy.inputs = {copy.outputs[0]};
      copy.outputs = {copy.outputs[1]};
    } else if (copy.op == Operator::norm && hasInput(copy, 1) && kept_[at(copy.outputs[0])]) {
      copy.inputs[0] = copy.outputs[0];
      copy.inputs[1] = none;
      copy.outputs[0] = none;
    }
    for (TensorId& id : copy.inputs) id = available(id);
    for (TensorId& id : copy.outputs) {
      if (id == none) continue;
      const Tensor tensor = source_.tensor(id);
      again_[at(id)] = result_.addTensor(tensor.name + "#again", tensor.shape, tensor.type, Role::activation);
      id = again_[at(id)];
    }
    result_.setLayer(copy.layer);
    result_.addNode(copy.op, std::move(copy.inputs), std::move(copy.outputs), std::move(copy.attributes));
  }

  // A pre-activation that is made again need not be written by the first forward pass.
  void dropUnreadPreActivations() {
    std::vector<bool> read(result_.tensors().size(), false);
    for (const Node& reader : result_.nodes()) {
      for (const TensorId id : reader.inputs) {
        if (id != none) read[at(id)] = true;
      }
    }
    for (Node& made : result_.nodes()) {
      if (made.op == Operator::linear && hasOutput(made, 0) && !read[at(made.outputs[0])]) made.outputs[0] = none;
    }
  }

  const Program& source_;
  Program result_;
  std::size_t loss_;
  std::vector<std::size_t> producer_;  // by TensorId: the forward node that writes it
  std::vector<bool> kept_;             // by TensorId
  std::vector<TensorId> again_;        // by TensorId: its second making
};

}  // namespace

Recompute parseRecompute(const std::string& text) {
  if (text == "none") return Recompute::nothing;
  if (text == "selective") return Recompute::selective;
  if (text == "full") return Recompute::full;
  throw base::Error(base::ErrorKind::usage,
                    "there is no recomputation '" + text + "'; it can be none, selective or full");
}

Program recompute(const Program& differentiated, Recompute policy) {
  const std::size_t loss = lossOf(differentiated);
  const bool isForwardAlone = loss == nobody || loss + 1 == differentiated.nodes().size();
  if (policy == Recompute::nothing || isForwardAlone) return differentiated;
  return Recomputer(differentiated, loss, policy).run();
}

}  // namespace tandem::graph
