#pragma once
// A model as a program: a list of operators over named tensors, in the order they run.
//
// `model` writes the forward pass once; everything else is derived from this list by passes that each do one thing:
// fuse, differentiate, recompute, plan (memory), cost. A pass takes a program and returns one.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/shape.h"
#include "kernels/backend.h"

namespace tandem::graph {

using base::DType;
using base::Shape;

using TensorId = std::int32_t;
constexpr TensorId none = -1;  // stands where an optional operand is absent

enum class Role : std::uint8_t {
  input,       // given anew for every run: tokens, targets, positions
  parameter,   // lives outside the program; read
  frozen,      // a parameter that is not trained: it has no gradient
  gradient,    // of a parameter; lives outside the program; added up over micro batches
  state,       // lives outside the program; read and written: a KV cache
  activation,  // lives from its first writing to its last reading; the memory plan gives it a place
  output,      // an activation that must survive the run: losses, logits
};

struct Tensor {
  std::string name;  // unique within the program
  Shape shape;
  DType type = DType::f32;
  Role role = Role::activation;
  // Of an activation or a gradient that is a part of another activation's memory: which one, and from which of its
  // elements on. It is alive as long as the whole.
  TensorId partOf = none;
  std::int64_t partBegin = 0;
};

// What each operator is told besides its operands. Operand order is documented at the registry (operators.h).
struct EmbeddingAttributes {
  kernels::TablePart part = {};
};
struct NormAttributes {
  kernels::NormKind kind = kernels::NormKind::rms;
  float epsilon = 1e-5f;
};
struct LinearAttributes {
  kernels::ActivationKind activation = kernels::ActivationKind::none;
  TensorId fp8 = none;  // a state float32 [kernels::fp8::count], where the operands are to be rounded to 8 bits
};
struct ActivationAttributes {
  kernels::ActivationKind kind = kernels::ActivationKind::none;
};
struct DropoutAttributes {
  float rate = 0;
  float factor = 1;
  std::uint32_t purpose = 0;
};
struct RowNormsAttributes {
  float factor = 1;  // of the change
};
struct RotaryAttributes {
  kernels::HeadLayout layout;
  std::vector<float> frequencies;  // [headSize / 2]
  float epsilon = 1e-6f;           // of QK-norm
};
struct AttentionAttributes {
  kernels::HeadLayout layout;
  std::int64_t window = 0;  // 0: no limit
  float scale = 0;
};
struct QuantisedAttributes {  // of operators that read a quantised matrix [outputs, inputs]
  kernels::QuantisedFormat format = kernels::QuantisedFormat::int8;
  std::int64_t outputs = 0, inputs = 0;
  kernels::ActivationKind activation = kernels::ActivationKind::none;  // of quantisedLinear
};
struct PartialCrossEntropyAttributes {
  std::int64_t firstToken = 0;  // of the part of the vocabulary
};
struct CollectiveAttributes {
  std::int32_t bucket = 0;  // which part of the flat gradients
};
struct ExchangeAttributes {
  std::vector<std::int64_t> rows;  // of each tensor rank
  std::int32_t rank = 0;           // this one
};
struct MessageAttributes {
  std::int32_t peer = 0;  // rank in the pipeline group
  bool isForward = true;  // of the forward pass; else a gradient
};
// Attention over a row that is cut into pieces, of which each rank of the context group has two.
struct RingAttributes {
  AttentionAttributes attention;
  std::int32_t rank = 0, ranks = 1;
};
using Attributes = std::variant<std::monostate, EmbeddingAttributes, NormAttributes, LinearAttributes,
                                ActivationAttributes, DropoutAttributes, RowNormsAttributes, RotaryAttributes,
                                AttentionAttributes, QuantisedAttributes, PartialCrossEntropyAttributes,
                                CollectiveAttributes, ExchangeAttributes, MessageAttributes, RingAttributes>;

enum class Operator : std::uint8_t {
  embedding,
  embeddingBackward,
  norm,
  normBackward,
  linear,
  linearBackwardInput,
  linearBackwardWeight,
  activation,
  activationBackward,
  add,
  dropout,   // or multiplication by a factor alone
  rowNorms,  // constants to the backward pass
  rescale,
  rescaleBackward,
  rotary,
  rotaryBackward,
  attention,
  attentionBackward,
  cachedAttention,
  linearCrossEntropy,
  quantisedLinear,
  quantisedEmbedding,
  dequantise,
  partialCrossEntropy,
  mergeCrossEntropy,
  partialCrossEntropyBackward,
  reduceScatter,   // starts the exchange of a bucket of gradients; the step waits for it before the update
  waitForSums,     // until such an exchange is done, and its gradients are no longer needed
  gatherWeights,   // starts to gather a bucket of weights from the ranks that share them out
  waitForWeights,  // until they are there
  gatherRows,      // every rank's rows on every rank: an all-gather
  scatterRows,     // sums of every rank's rows, dealt out over the ranks: a reduce-scatter
  send,
  receive,
  ringAttention,
  ringAttentionBackward,
};
constexpr std::size_t operatorCount = static_cast<std::size_t>(Operator::ringAttentionBackward) + 1;

struct Node {
  Operator op = Operator::add;
  std::vector<TensorId> inputs;
  std::vector<TensorId> outputs;
  Attributes attributes;
  // For each output that is a gradient: whether an earlier node of this program has already written to it. The first
  // writer overwrites in the first micro batch and adds in the later ones; the others always add.
  std::vector<bool> addsToOutput;
  std::int32_t layer = -1;  // of the model, for recomputation and tables; -1: outside the layers
};

class Program {
 public:
  // Throws Error of kind usage when there is a tensor of that name already.
  TensorId addTensor(const std::string& name, const Shape& shape, DType type, Role role);
  Node& addNode(Operator op, std::vector<TensorId> inputs, std::vector<TensorId> outputs, Attributes attributes = {});

  const Tensor& tensor(TensorId id) const { return tensors_[static_cast<std::size_t>(id)]; }
  Tensor& tensor(TensorId id) { return tensors_[static_cast<std::size_t>(id)]; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<Node>& nodes() { return nodes_; }
  // none when there is no such tensor.
  TensorId find(const std::string& name) const;
  // Ids of one role, in the order of their creation: for parameters that is the order of their first use.
  std::vector<TensorId> ofRole(Role role) const;
  std::int64_t parameterCount() const;

  // Nodes made from now on belong to this layer.
  void setLayer(std::int32_t layer) { layer_ = layer; }

  // One line a node, for logs, tests and --dry-run.
  std::string text() const;

 private:
  std::vector<Tensor> tensors_;
  std::vector<Node> nodes_;
  std::int32_t layer_ = -1;
};

const char* name(Operator op);

// The name of the gradient of a parameter.
std::string gradientName(const std::string& parameter);

}  // namespace tandem::graph
