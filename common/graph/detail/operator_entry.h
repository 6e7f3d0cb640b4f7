#pragma once
// What an entry of the registry is made of, and the three helpers that its rules are written with: Checker for the rule
// of shapes and types, GradientBuilder for the gradient rule, Call for running the kernel.

#include <cstddef>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/graph/operators.h"
#include "common/graph/program.h"

namespace tandem::graph::detail {

struct Operand {
  const char* name;
  bool optional = false;
};
constexpr bool optional = true;

// One operand of a node as the shape rule sees it.
struct CheckedOperand {
  const char* name = "";
  const Tensor* tensor = nullptr;  // null: absent

  explicit operator bool() const { return tensor != nullptr; }
  const Shape& shape() const { return tensor->shape; }
  DType type() const { return tensor->type; }
};

class Checker {
 public:
  Checker(const Program& program, std::size_t node) : program_(program), index_(node), node_(program.nodes()[node]) {}

  const Node& node() const { return node_; }
  CheckedOperand input(int index) const;
  CheckedOperand output(int index) const;

  // Throws Error of kind usage, naming the node, unless the condition holds: "<node>: <rule>".
  void expect(bool holds, const std::string& rule) const;
  // The same about one operand: "<node>: <operand> '<name>' is <type> <shape>, but must be <rule>".
  void expect(bool holds, const CheckedOperand& operand, const std::string& rule) const;

  void expectStorage(const CheckedOperand& operand) const;                            // float32, bfloat16 or float16
  void expectSame(const CheckedOperand& operand, const CheckedOperand& model) const;  // type and shape
  void expectType(const CheckedOperand& operand, DType type) const;
  // An absent optional operand passes.
  void expectShape(const CheckedOperand& operand, DType type, const Shape& shape) const;
  // `count` elements in any shape.
  void expectCount(const CheckedOperand& operand, DType type, std::int64_t count, const std::string& meaning) const;
  void expectTogether(const CheckedOperand& one, const CheckedOperand& other) const;  // both given or both absent

  template <class T>
  const T& attributes() const {
    expect(std::holds_alternative<T>(node_.attributes), "its attributes are those of another operator");
    return std::get<T>(node_.attributes);
  }

  // "node 12 (linear, writes 'h0.qkv')"
  std::string place() const;

 private:
  const Program& program_;
  std::size_t index_;
  const Node& node_;
};

// The backward pass while it is being written. Gradients of activations are tensors that are written once; a second
// one that reaches the same tensor is added to the first by an `add` node, unless the rule itself can take it along.
class GradientBuilder {
 public:
  explicit GradientBuilder(const Program& forward);

  // A copy, since appending moves the nodes.
  Node node(std::size_t index) const { return program_.nodes()[index]; }
  Node& forwardNode(std::size_t index) { return program_.nodes()[index]; }
  const Tensor& tensor(TensorId id) const { return program_.tensor(id); }
  // Whether a parameter lies behind this tensor.
  bool wants(TensorId id) const;
  // What has reached this tensor so far; none when nothing has.
  TensorId reached(TensorId id) const;
  // A new activation of the shape and type of `id`, named after it.
  TensorId makeGradient(TensorId id);
  TensorId makeTensor(const std::string& name, const Shape& shape, DType type, Role role);
  // `gradient` flows back into `id`, besides what has reached it before.
  void give(TensorId id, TensorId gradient);
  // `gradient` contains what has reached `id` before.
  void replace(TensorId id, TensorId gradient);
  // The gradient tensor of a parameter; none for an absent operand or a tensor without gradient.
  TensorId ofParameter(TensorId parameter);
  // The same for a weight whose gradient its operator computes anyway: of a frozen one, a tensor that nobody reads.
  TensorId ofWeight(TensorId weight);
  // Appends to the backward pass. The layer is the differentiated node's.
  void append(Operator op, std::vector<TensorId> inputs, std::vector<TensorId> outputs, Attributes attributes = {});
  // Marks the gradients among the outputs of a node as written, and tells it whether it is the first to do so.
  void markGradients(Node& node);

  // Differentiates node by node from the given one back to the first.
  Program run(std::size_t lossNode);

 private:
  void checkEveryParameterIsReached() const;

  Program program_;
  std::vector<bool> wanted_;       // by TensorId of the forward program
  std::vector<TensorId> reached_;  // likewise
  std::unordered_set<TensorId> written_;
};

// One run of a node.
class Call {
 public:
  Call(const Node& node, std::span<const kernels::TensorView> views, bool firstMicroBatch, std::int64_t documents)
      : node_(node), views_(views), firstMicroBatch_(firstMicroBatch), documents_(documents) {}

  // Views of the operands; empty for absent ones.
  kernels::TensorView input(int index) const { return view(node_.inputs[static_cast<std::size_t>(index)]); }
  kernels::TensorView output(int index) const { return view(node_.outputs[static_cast<std::size_t>(index)]); }
  // The same with all axes but the last folded into one, or all of them.
  kernels::TensorView inputRows(int index) const { return rows(input(index)); }
  kernels::TensorView outputRows(int index) const { return rows(output(index)); }
  kernels::TensorView inputFlat(int index) const { return flat(input(index)); }
  kernels::TensorView outputFlat(int index) const { return flat(output(index)); }
  bool accumulate(int output) const {
    return !firstMicroBatch_ || node_.addsToOutput[static_cast<std::size_t>(output)];
  }
  // Of a linear layer whose operands are to be rounded to 8 bits; empty for others.
  kernels::TensorView fp8State() const {
    const auto* attributes = std::get_if<LinearAttributes>(&node_.attributes);
    return attributes == nullptr ? kernels::TensorView() : view(attributes->fp8);
  }
  // In the rows of this run; 0: unknown.
  std::int64_t documents() const { return documents_; }
  template <class T>
  const T& attributes() const {
    return std::get<T>(node_.attributes);
  }

 private:
  kernels::TensorView view(TensorId id) const {
    return id == none ? kernels::TensorView() : views_[static_cast<std::size_t>(id)];
  }
  static kernels::TensorView rows(const kernels::TensorView& view) {
    return view ? kernels::TensorView(view.data, view.type, {view.shape.rows(), view.shape.last()}) : view;
  }
  static kernels::TensorView flat(const kernels::TensorView& view) {
    return view ? kernels::TensorView(view.data, view.type, {view.shape.count()}) : view;
  }

  const Node& node_;
  std::span<const kernels::TensorView> views_;
  bool firstMicroBatch_;
  std::int64_t documents_;
};

// OperatorEntry::run, of the function that says which operands of a call are which of the kernel's.
template <auto operationOf>
void launch(const Call& call, kernels::Backend& backend, kernels::Stream& stream) {
  backend.run(operationOf(call), stream);
}

struct OperatorEntry {
  const char* name;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  // Shapes, types and attributes; presence of the required operands is checked before.
  void (*check)(const Checker&);
  // Appends the backward nodes; null for an operator that has no gradient.
  void (*gradient)(GradientBuilder&, std::size_t node) = nullptr;
  // Of matrix products and attention; null for none.
  double (*flops)(const Program&, const Node&) = nullptr;
  // Bytes of operands that are not touched, to be taken off the sum of all; null for none.
  double (*untouchedBytes)(const Program&, const Node&) = nullptr;
  SplitRule split = SplitRule::unsplit;
  // Null for an operator that the runtime carries out itself (collectives).
  void (*run)(const Call&, kernels::Backend&, kernels::Stream&) = nullptr;
  // Whether an output may have the memory of an input; null for never. At most one output of an operator does.
  bool (*mayShare)(const Node&, int output, int input) = nullptr;
};

const OperatorEntry& entryOf(Operator op);

// The entries, by family.
OperatorEntry embeddingEntry();
OperatorEntry embeddingBackwardEntry();
OperatorEntry normEntry();
OperatorEntry normBackwardEntry();
OperatorEntry linearEntry();
OperatorEntry linearBackwardInputEntry();
OperatorEntry linearBackwardWeightEntry();
OperatorEntry activationEntry();
OperatorEntry activationBackwardEntry();
OperatorEntry addEntry();
OperatorEntry dropoutEntry();
OperatorEntry rowNormsEntry();
OperatorEntry rescaleEntry();
OperatorEntry rescaleBackwardEntry();
OperatorEntry rotaryEntry();
OperatorEntry rotaryBackwardEntry();
OperatorEntry attentionEntry();
OperatorEntry attentionBackwardEntry();
OperatorEntry cachedAttentionEntry();
OperatorEntry linearCrossEntropyEntry();
OperatorEntry quantisedLinearEntry();
OperatorEntry quantisedEmbeddingEntry();
OperatorEntry dequantiseEntry();
OperatorEntry partialCrossEntropyEntry();
OperatorEntry mergeCrossEntropyEntry();
OperatorEntry partialCrossEntropyBackwardEntry();
OperatorEntry reduceScatterEntry();
OperatorEntry waitForSumsEntry();
OperatorEntry gatherWeightsEntry();
OperatorEntry waitForWeightsEntry();
OperatorEntry gatherRowsEntry();
OperatorEntry scatterRowsEntry();
OperatorEntry sendEntry();
OperatorEntry receiveEntry();
OperatorEntry ringAttentionEntry();
OperatorEntry ringAttentionBackwardEntry();

// Operand `index` as a tensor; only for operands that are there.
inline const Tensor& inputOf(const Program& program, const Node& node, int index) {
  return program.tensor(node.inputs[static_cast<std::size_t>(index)]);
}
inline bool hasInput(const Node& node, int index) { return node.inputs[static_cast<std::size_t>(index)] != none; }
inline bool hasOutput(const Node& node, int index) { return node.outputs[static_cast<std::size_t>(index)] != none; }

// Bytes of a dense tensor.
inline std::int64_t bytesOf(const Tensor& tensor) { return tensor.shape.count() * base::byteSize(tensor.type); }

}  // namespace tandem::graph::detail
