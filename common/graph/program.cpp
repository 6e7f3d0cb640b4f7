#include "common/graph/program.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "common/base/error.h"
#include "common/graph/detail/operator_entry.h"

namespace tandem::graph {
namespace {

const char* text(kernels::ActivationKind kind) {
  switch (kind) {
    case kernels::ActivationKind::none:
      return "none";
    case kernels::ActivationKind::geluTanh:
      return "geluTanh";
    case kernels::ActivationKind::geluErf:
      return "geluErf";
    case kernels::ActivationKind::relu2:
      return "relu2";
    case kernels::ActivationKind::swiglu:
      return "swiglu";
  }
  return "?";
}

void describe(std::ostream& out, const kernels::HeadLayout& layout) {
  out << " heads=" << layout.heads << "/" << layout.kvHeads << "x" << layout.headSize;
}

struct AttributesWriter {
  std::ostream& out;

  void operator()(const std::monostate&) const {}
  void operator()(const EmbeddingAttributes& embedding) const {
    if (embedding.part.isPart) {
      out << " from=" << embedding.part.firstToken << "/" << embedding.part.firstPosition;
    }
  }
  void operator()(const NormAttributes& norm) const {
    out << " " << (norm.kind == kernels::NormKind::layer ? "layer" : "rms") << " epsilon=" << norm.epsilon;
  }
  void operator()(const LinearAttributes& linear) const {
    if (linear.activation != kernels::ActivationKind::none) out << " " << text(linear.activation);
  }
  void operator()(const ActivationAttributes& activation) const { out << " " << text(activation.kind); }
  void operator()(const DropoutAttributes& dropout) const {
    if (dropout.rate > 0) out << " rate=" << dropout.rate;
    out << " factor=" << dropout.factor;
  }
  void operator()(const RowNormsAttributes& norms) const { out << " factor=" << norms.factor; }
  void operator()(const RotaryAttributes& rotary) const { describe(out, rotary.layout); }
  void operator()(const AttentionAttributes& attention) const {
    describe(out, attention.layout);
    if (attention.window > 0) out << " window=" << attention.window;
  }
  void operator()(const QuantisedAttributes& quantised) const {
    out << (quantised.format == kernels::QuantisedFormat::int8 ? " int8" : " int4");
    if (quantised.activation != kernels::ActivationKind::none) out << " " << text(quantised.activation);
  }
  void operator()(const PartialCrossEntropyAttributes& part) const { out << " from=" << part.firstToken; }
  void operator()(const CollectiveAttributes& collective) const { out << " bucket=" << collective.bucket; }
  void operator()(const ExchangeAttributes& exchange) const {
    out << " rows=";
    for (std::size_t i = 0; i < exchange.rows.size(); ++i) out << (i > 0 ? "+" : "") << exchange.rows[i];
  }
  void operator()(const RingAttributes& ring) const {
    (*this)(ring.attention);
    out << " rank=" << ring.rank << "/" << ring.ranks;
  }
  void operator()(const MessageAttributes& message) const {
    out << (message.isForward ? " stage=" : " gradient stage=") << message.peer;
  }
};

void writeInputs(std::ostream& out, const Program& program, const Node& node) {
  const auto& operands = detail::entryOf(node.op).inputs;
  for (std::size_t index = 0; index < node.inputs.size(); ++index) {
    if (node.inputs[index] == none) continue;
    out << " " << (index < operands.size() ? operands[index].name : "?") << "="
        << program.tensor(node.inputs[index]).name;
  }
}

void writeOutputs(std::ostream& out, const Program& program, const Node& node) {
  const auto& operands = detail::entryOf(node.op).outputs;
  for (std::size_t index = 0; index < node.outputs.size(); ++index) {
    if (node.outputs[index] == none) continue;
    const Tensor& tensor = program.tensor(node.outputs[index]);
    const bool adds = index < node.addsToOutput.size() && node.addsToOutput[index];
    out << " " << (index < operands.size() ? operands[index].name : "?") << (adds ? "+=" : "=") << tensor.name << " "
        << base::name(tensor.type) << tensor.shape.text();
  }
}

}  // namespace

TensorId Program::addTensor(const std::string& name, const Shape& shape, DType type, Role role) {
  const auto id = static_cast<TensorId>(tensors_.size());
  if (find(name) != none) {
    throw base::Error(base::ErrorKind::usage,
                      "the program already has a tensor named '" + name + "'; each tensor needs a name of its own");
  }
  tensors_.push_back({name, shape, type, role});
  return id;
}

Node& Program::addNode(Operator op, std::vector<TensorId> inputs, std::vector<TensorId> outputs,
                       Attributes attributes) {
  Node node;
  node.op = op;
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.attributes = std::move(attributes);
  node.addsToOutput.assign(node.outputs.size(), false);
  node.layer = layer_;
  nodes_.push_back(std::move(node));
  return nodes_.back();
}

TensorId Program::find(const std::string& name) const {
  // Some thousand tensors at most: looking at each is quick enough, and right after one was renamed.
  for (std::size_t id = 0; id < tensors_.size(); ++id) {
    if (tensors_[id].name == name) return static_cast<TensorId>(id);
  }
  return none;
}

std::vector<TensorId> Program::ofRole(Role role) const {
  std::vector<TensorId> ids;
  for (std::size_t id = 0; id < tensors_.size(); ++id) {
    if (tensors_[id].role == role) ids.push_back(static_cast<TensorId>(id));
  }
  return ids;
}

std::int64_t Program::parameterCount() const {
  std::int64_t count = 0;
  for (const Tensor& tensor : tensors_) {
    if (tensor.role == Role::parameter) count += tensor.shape.count();
  }
  return count;
}

std::string Program::text() const {
  std::ostringstream out;
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    const Node& node = nodes_[index];
    out << std::setw(4) << index << " ";
    if (node.layer >= 0) {
      out << "layer " << node.layer << " ";
    }
    out << graph::name(node.op);
    std::visit(AttributesWriter{out}, node.attributes);
    out << ":";
    writeInputs(out, *this, node);
    out << " ->";
    writeOutputs(out, *this, node);
    out << "\n";
  }
  return out.str();
}

std::string gradientName(const std::string& parameter) { return parameter + ".gradient"; }

}  // namespace tandem::graph
