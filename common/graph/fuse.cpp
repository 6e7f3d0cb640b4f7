// Fusion: pairs of nodes that one kernel does at once, so that the tensor between them is not read again from memory.
// What is computed stays the same; tensor ids stay valid, and a tensor that no node names any more takes no memory.

#include <optional>

#include "common/graph/detail/operator_entry.h"
#include "common/graph/passes.h"

namespace tandem::graph {
namespace {

using kernels::ActivationKind;

// For each tensor, the nodes that read it, in order.
std::vector<std::vector<std::size_t>> readersOf(const Program& program) {
  std::vector<std::vector<std::size_t>> readers(program.tensors().size());
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    for (const TensorId id : program.nodes()[index].inputs) {
      if (id != none) readers[static_cast<std::size_t>(id)].push_back(index);
    }
  }
  return readers;
}

class Fuser {
 public:
  explicit Fuser(const Program& program)
      : program_(program), readers_(readersOf(program)), removed_(program.nodes().size(), false) {}

  Program run() {
    for (std::size_t index = 0; index < program_.nodes().size(); ++index) {
      switch (program_.nodes()[index].op) {
        case Operator::add:
          fuseResidual(index);
          break;
        case Operator::linear:
          fuseEpilogue(index);
          break;
        case Operator::linearBackwardInput:
          fuseBackward(index);
          break;
        default:
          break;
      }
    }
    std::vector<Node> left;
    for (std::size_t index = 0; index < removed_.size(); ++index) {
      if (!removed_[index]) left.push_back(std::move(program_.nodes()[index]));
    }
    program_.nodes() = std::move(left);
    return std::move(program_);
  }

 private:
  // The node that reads the tensor first, when it is of that kind and reads it as its first operand.
  std::optional<std::size_t> firstReader(TensorId id, Operator op) const {
    const auto& readers = readers_[static_cast<std::size_t>(id)];
    if (readers.empty()) return std::nullopt;
    const Node& reader = program_.nodes()[readers.front()];
    if (reader.op != op || reader.inputs[0] != id) return std::nullopt;
    return readers.front();
  }

  // sum = left + right; norm(sum): the norm makes the sum too, at its own place, before which nobody reads it.
  void fuseResidual(std::size_t index) {
    const Node& add = program_.nodes()[index];
    const auto reader = firstReader(add.outputs[0], Operator::norm);
    if (!reader || detail::hasInput(program_.nodes()[*reader], 1)) return;
    Node& norm = program_.nodes()[*reader];
    norm.inputs[0] = add.inputs[0];
    norm.inputs[1] = add.inputs[1];
    norm.outputs[0] = add.outputs[0];
    removed_[index] = true;
  }

  // pre = linear(x); activation(pre): pre is written only if something else reads it, as the backward pass does.
  void fuseEpilogue(std::size_t index) {
    Node& linear = program_.nodes()[index];
    auto& attributes = std::get<LinearAttributes>(linear.attributes);
    if (attributes.activation != ActivationKind::none) return;
    const TensorId pre = linear.outputs[1];
    const auto reader = firstReader(pre, Operator::activation);
    if (!reader) return;
    const Node& activation = program_.nodes()[*reader];
    const ActivationKind kind = std::get<ActivationAttributes>(activation.attributes).kind;
    if (kind == ActivationKind::swiglu) return;
    const bool kept = readers_[static_cast<std::size_t>(pre)].size() > 1 || program_.tensor(pre).role == Role::output;
    attributes.activation = kind;
    linear.outputs = {kept ? pre : none, activation.outputs[0]};
    removed_[*reader] = true;
  }

  // g = linearBackwardInput(..); activationBackward(g, pre), the only reader: at the place of the second.
  void fuseBackward(std::size_t index) {
    const Node& linear = program_.nodes()[index];
    const TensorId gradient = linear.outputs[0];
    const auto reader = firstReader(gradient, Operator::activationBackward);
    if (std::get<LinearAttributes>(linear.attributes).activation != ActivationKind::none || !reader ||
        readers_[static_cast<std::size_t>(gradient)].size() > 1 || program_.tensor(gradient).role != Role::activation) {
      return;
    }
    Node& activation = program_.nodes()[*reader];
    const ActivationKind kind = std::get<ActivationAttributes>(activation.attributes).kind;
    if (kind == ActivationKind::swiglu) return;
    Node fused = linear;
    fused.attributes = LinearAttributes{kind};
    fused.inputs[2] = activation.inputs[1];
    fused.outputs = activation.outputs;
    activation = std::move(fused);
    removed_[index] = true;
  }

  Program program_;
  std::vector<std::vector<std::size_t>> readers_;
  std::vector<bool> removed_;
};

}  // namespace

Program fuse(const Program& program) { return Fuser(program).run(); }

}  // namespace tandem::graph
