// The pass that makes a program read quantised weights.

#include "common/base/error.h"
#include "common/graph/detail/operator_entry.h"
#include "common/graph/passes.h"

namespace tandem::graph {
namespace {

class Quantiser {
 public:
  Quantiser(const Program& program, const QuantisedParameters& parameters)
      : program_(program), parameters_(parameters) {}

  Program run() {
    std::vector<Node> old;
    old.swap(program_.nodes());
    for (Node& node : old) append(std::move(node));
    return std::move(program_);
  }

 private:
  // Null for a tensor that stays as it is.
  const kernels::QuantisedFormat* formatOf(TensorId id) const {
    if (id == none || program_.tensor(id).role != Role::parameter) return nullptr;
    const auto found = parameters_.find(program_.tensor(id).name);
    return found == parameters_.end() ? nullptr : &found->second;
  }

  void append(Node node) {
    for (std::size_t index = 0; index < node.inputs.size(); ++index) {
      if (formatOf(node.inputs[index]) == nullptr) continue;
      if (index != 1 || !isReplaced(node)) {
        throw base::Error(base::ErrorKind::usage, "'" + program_.tensor(node.inputs[index]).name +
                                                      "' cannot be quantised: " + name(node.op) +
                                                      " reads it, which has no such form");
      }
      replace(node);
    }
    program_.nodes().push_back(std::move(node));
  }

  static bool isReplaced(const Node& node) {
    return (node.op == Operator::linear && node.outputs[0] == none) || node.op == Operator::embedding ||
           (node.op == Operator::linearCrossEntropy && node.outputs[1] == none);
  }

  // The matrix is the second operand of all three.
  void replace(Node& node) {
    const TensorId matrix = node.inputs[1];
    QuantisedAttributes attributes = attributesOf(matrix);
    if (node.op == Operator::linearCrossEntropy) {
      node.inputs[1] = dequantised(matrix, attributes, node.layer);
      return;
    }
    node.inputs[1] = stored(codesName(program_.tensor(matrix).name), DType::u8,
                            kernels::codesInMemory(attributes.format, attributes.outputs, attributes.inputs));
    node.inputs.insert(node.inputs.begin() + 2, scalesOf(matrix, attributes));
    if (node.op == Operator::linear) {
      attributes.activation = std::get<LinearAttributes>(node.attributes).activation;
      node.op = Operator::quantisedLinear;
      node.outputs.erase(node.outputs.begin());
      node.addsToOutput.erase(node.addsToOutput.begin());
    } else {
      node.op = Operator::quantisedEmbedding;
    }
    node.attributes = attributes;
  }

  QuantisedAttributes attributesOf(TensorId matrix) const {
    const Shape& shape = program_.tensor(matrix).shape;
    return {.format = *formatOf(matrix), .outputs = shape[0], .inputs = shape[1]};
  }

  TensorId stored(const std::string& name, DType type, const Shape& shape) {
    const TensorId found = program_.find(name);
    return found != none ? found : program_.addTensor(name, shape, type, Role::parameter);
  }

  TensorId scalesOf(TensorId matrix, const QuantisedAttributes& attributes) {
    return stored(scalesName(program_.tensor(matrix).name), kernels::scalesType(attributes.format),
                  kernels::scalesInMemory(attributes.format, attributes.outputs, attributes.inputs));
  }

  TensorId dequantised(TensorId matrix, const QuantisedAttributes& attributes, std::int32_t layer) {
    const Tensor original = program_.tensor(matrix);
    const TensorId codes = stored(codesName(original.name), DType::u8,
                                  kernels::codesInMemory(attributes.format, attributes.outputs, attributes.inputs));
    const TensorId scales = scalesOf(matrix, attributes);
    const TensorId output =
        program_.addTensor(original.name + ".dequantised", original.shape, original.type, Role::activation);
    program_.setLayer(layer);
    program_.addNode(Operator::dequantise, {codes, scales}, {output}, attributes);
    return output;
  }

  Program program_;
  const QuantisedParameters& parameters_;
};

}  // namespace

std::string codesName(const std::string& parameter) { return parameter + ".codes"; }
std::string scalesName(const std::string& parameter) { return parameter + ".scales"; }

Program quantise(const Program& program, const QuantisedParameters& parameters) {
  return Quantiser(program, parameters).run();
}

}  // namespace tandem::graph
