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
    for (const TensorId id : program_.ofRole(Role::frozen)) {
      if (parameters_.contains(program_.tensor(id).name)) program_.tensor(id).role = Role::activation;
    }
    return std::move(program_);
  }

 private:
  // Null for a tensor that stays as it is.
  const kernels::QuantisedFormat* formatOf(TensorId id) const {
    if (id == none || (program_.tensor(id).role != Role::parameter && !isFrozen(id))) return nullptr;
    const auto found = parameters_.find(program_.tensor(id).name);
    return found == parameters_.end() ? nullptr : &found->second;
  }

  bool isFrozen(TensorId id) const { return program_.tensor(id).role == Role::frozen; }

  void append(Node node) {
    for (std::size_t index = 0; index < node.inputs.size(); ++index) {
      if (formatOf(node.inputs[index]) == nullptr) continue;
      if (isFrozen(node.inputs[index])) {
        node.inputs[index] = dequantised(node.inputs[index], attributesOf(node.inputs[index]), node.layer);
        continue;
      }
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
    node.inputs[1] = codesOf(matrix, attributes);
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

  TensorId stored(const std::string& name, DType type, const Shape& shape, Role role) {
    const TensorId found = program_.find(name);
    return found != none ? found : program_.addTensor(name, shape, type, role);
  }

  TensorId codesOf(TensorId matrix, const QuantisedAttributes& attributes) {
    return stored(codesName(program_.tensor(matrix).name), DType::u8,
                  kernels::codesInMemory(attributes.format, attributes.outputs, attributes.inputs),
                  program_.tensor(matrix).role);
  }

  TensorId scalesOf(TensorId matrix, const QuantisedAttributes& attributes) {
    return stored(scalesName(program_.tensor(matrix).name), kernels::scalesType(attributes.format),
                  kernels::scalesInMemory(attributes.format, attributes.outputs, attributes.inputs),
                  program_.tensor(matrix).role);
  }

  TensorId dequantised(TensorId matrix, const QuantisedAttributes& attributes, std::int32_t layer) {
    const Tensor original = program_.tensor(matrix);
    const TensorId codes = codesOf(matrix, attributes), scales = scalesOf(matrix, attributes);
    std::string name = original.name + ".dequantised";
    if (isFrozen(matrix)) name += "#" + std::to_string(program_.nodes().size());
    const TensorId output = program_.addTensor(name, original.shape, original.type, Role::activation);
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
