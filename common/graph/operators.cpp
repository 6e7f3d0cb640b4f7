#include "common/graph/operators.h"

#include <array>

#include "common/base/error.h"
#include "common/graph/detail/operator_entry.h"

namespace tandem::graph {
namespace detail {
namespace {

// The attributes name the bucket; the runtime, which owns what is exchanged, starts the exchange.
void checkBucket(const Checker& checker) {
  checker.expect(checker.attributes<CollectiveAttributes>().bucket >= 0, "the bucket cannot be negative");
}

// In the order of `Operator`.
std::array<OperatorEntry, operatorCount> makeRegistry() {
  return {embeddingEntry(),
          embeddingBackwardEntry(),
          normEntry(),
          normBackwardEntry(),
          linearEntry(),
          linearBackwardInputEntry(),
          linearBackwardWeightEntry(),
          activationEntry(),
          activationBackwardEntry(),
          addEntry(),
          dropoutEntry(),
          rowNormsEntry(),
          rescaleEntry(),
          rescaleBackwardEntry(),
          rotaryEntry(),
          rotaryBackwardEntry(),
          attentionEntry(),
          attentionBackwardEntry(),
          cachedAttentionEntry(),
          linearCrossEntropyEntry(),
          quantisedLinearEntry(),
          quantisedEmbeddingEntry(),
          dequantiseEntry(),
          partialCrossEntropyEntry(),
          mergeCrossEntropyEntry(),
          partialCrossEntropyBackwardEntry(),
          reduceScatterEntry(),
          waitForSumsEntry(),
          gatherWeightsEntry(),
          waitForWeightsEntry(),
          gatherRowsEntry(),
          scatterRowsEntry(),
          sendEntry(),
          receiveEntry(),
          ringAttentionEntry(),
          ringAttentionBackwardEntry()};
}

}  // namespace

OperatorEntry reduceScatterEntry() {
  return {.name = "reduceScatter", .inputs = {{"gradients", optional}}, .outputs = {}, .check = checkBucket};
}

OperatorEntry waitForSumsEntry() {
  return {.name = "waitForSums", .inputs = {{"gradients"}}, .outputs = {}, .check = checkBucket};
}

OperatorEntry gatherWeightsEntry() {
  return {.name = "gatherWeights", .inputs = {}, .outputs = {{"weights"}}, .check = checkBucket};
}

OperatorEntry waitForWeightsEntry() {
  return {.name = "waitForWeights", .inputs = {{"weights", optional}}, .outputs = {}, .check = checkBucket};
}

const OperatorEntry& entryOf(Operator op) {
  static const std::array<OperatorEntry, operatorCount> registry = makeRegistry();
  return registry[static_cast<std::size_t>(op)];
}

}  // namespace detail

namespace {

using detail::Checker;
using detail::Operand;
using detail::OperatorEntry;

void checkOperands(const Checker& checker, const Program& program, const std::vector<Operand>& operands,
                   const std::vector<TensorId>& ids, const std::string& side) {
  checker.expect(ids.size() == operands.size(), "it has " + std::to_string(ids.size()) + " " + side + ", but takes " +
                                                    std::to_string(operands.size()) +
                                                    " (none for an absent optional one)");
  for (std::size_t index = 0; index < ids.size(); ++index) {
    const TensorId id = ids[index];
    checker.expect(id != none || operands[index].optional, std::string(operands[index].name) + " is missing");
    checker.expect(id >= none && id < static_cast<TensorId>(program.tensors().size()),
                   std::string(operands[index].name) + " names a tensor that does not exist");
  }
}

// Every activation is written once, and before it is read; what it is a part of stands for a part, and is written with
// its first. `written` is by TensorId.
void checkOrder(const Checker& checker, const Program& program, const Node& node, std::vector<bool>& written) {
  for (const TensorId id : node.inputs) {
    if (id == none) continue;
    const Tensor& tensor = program.tensor(id);
    const bool made = tensor.role == Role::activation || tensor.role == Role::output;
    const TensorId whole = tensor.partOf == none ? id : tensor.partOf;
    checker.expect(!made || written[static_cast<std::size_t>(whole)],
                   "it reads '" + tensor.name + "' before any node has written it");
  }
  for (const TensorId id : node.outputs) {
    if (id == none) continue;
    const Tensor& tensor = program.tensor(id);
    checker.expect(tensor.role == Role::activation || tensor.role == Role::output || tensor.role == Role::gradient,
                   "it writes '" + tensor.name + "', which is no activation, output or gradient");
    if (tensor.partOf != none) written[static_cast<std::size_t>(tensor.partOf)] = true;
    if (tensor.role == Role::gradient) continue;
    checker.expect(!written[static_cast<std::size_t>(id)], "'" + tensor.name + "' was written by an earlier node");
    written[static_cast<std::size_t>(id)] = true;
  }
}

double bytesOf(const Program& program, const std::vector<TensorId>& ids) {
  double sum = 0;
  for (const TensorId id : ids) {
    if (id != none) sum += static_cast<double>(detail::bytesOf(program.tensor(id)));
  }
  return sum;
}

}  // namespace

SplitRule splitRule(Operator op) { return detail::entryOf(op).split; }

bool exchangesActivations(Operator op) { return op >= Operator::gatherRows; }

bool exchangesParameters(Operator op) { return op >= Operator::reduceScatter && op < Operator::gatherRows; }

const char* name(Operator op) { return detail::entryOf(op).name; }

void check(const Program& program) {
  std::vector<bool> written(program.tensors().size(), false);
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    const OperatorEntry& entry = detail::entryOf(node.op);
    const Checker checker(program, index);
    checkOperands(checker, program, entry.inputs, node.inputs, "inputs");
    checkOperands(checker, program, entry.outputs, node.outputs, "outputs");
    TANDEM_ASSERT(node.addsToOutput.size() == node.outputs.size(), "a node has one flag an output");
    checkOrder(checker, program, node, written);
    entry.check(checker);
  }
}

Cost cost(const Program& program, const Node& node) {
  const OperatorEntry& entry = detail::entryOf(node.op);
  Cost result;
  result.bytes = bytesOf(program, node.inputs) + bytesOf(program, node.outputs);
  if (entry.untouchedBytes) result.bytes -= entry.untouchedBytes(program, node);
  if (entry.flops) result.flops = entry.flops(program, node);
  return result;
}

void runNode(const Program&, const Node& node, std::span<const kernels::TensorView> views, bool firstMicroBatch,
             kernels::Backend& backend, kernels::Stream& stream, std::int64_t documents) {
  const OperatorEntry& entry = detail::entryOf(node.op);
  TANDEM_ASSERT(entry.run, "collectives are carried out by the runtime");
  entry.run(detail::Call(node, views, firstMicroBatch, documents), backend, stream);
}

bool mayShareMemory(const Node& node, int output, int input) {
  const OperatorEntry& entry = detail::entryOf(node.op);
  return entry.mayShare && entry.mayShare(node, output, input);
}

}  // namespace tandem::graph
