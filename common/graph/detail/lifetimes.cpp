#include "common/graph/detail/lifetimes.h"

#include <algorithm>

#include "common/graph/detail/operator_entry.h"
#include "common/graph/operators.h"

namespace tandem::graph::detail {
namespace {

constexpr std::int64_t alignment = 64;

// For each tensor the last node that names it or a part of it.
std::vector<std::size_t> lastUses(const Program& program) {
  std::vector<std::size_t> last(program.tensors().size(), 0);
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    for (const auto* ids : {&node.inputs, &node.outputs}) {
      for (const TensorId id : *ids) {
        if (id == none) continue;
        const TensorId whole = program.tensor(id).partOf;
        last[static_cast<std::size_t>(whole == none ? id : whole)] = index;
      }
    }
  }
  return last;
}

// Whether the output may overwrite that input in every place where the node reads it.
bool overwrites(const Node& node, int output, TensorId input) {
  for (std::size_t index = 0; index < node.inputs.size(); ++index) {
    if (node.inputs[index] == input && !mayShareMemory(node, output, static_cast<int>(index))) return false;
  }
  return true;
}

}  // namespace

std::vector<Buffer> buffersOf(const Program& program) {
  const std::vector<std::size_t> last = lastUses(program);
  std::vector<Buffer> buffers;
  std::vector<std::size_t> bufferOf(program.tensors().size(), 0);
  const auto add = [&](TensorId id, std::size_t index) {
    const std::int64_t bytes = (bytesOf(program.tensor(id)) + alignment - 1) / alignment * alignment;
    bufferOf[static_cast<std::size_t>(id)] = buffers.size();
    buffers.push_back({bytes, index, last[static_cast<std::size_t>(id)], {id}});
  };
  std::vector<bool> begun(program.tensors().size(), false);  // of the tensors that others are parts of
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    for (std::size_t output = 0; output < node.outputs.size(); ++output) {
      const TensorId id = node.outputs[output];
      if (id == none) continue;
      if (const TensorId whole = program.tensor(id).partOf; whole != none) {
        if (!begun[static_cast<std::size_t>(whole)]) add(whole, index);
        begun[static_cast<std::size_t>(whole)] = true;
        continue;
      }
      if (program.tensor(id).role != Role::activation) continue;
      const std::int64_t bytes = bytesOf(program.tensor(id));
      std::size_t buffer = buffers.size();
      for (const TensorId input : node.inputs) {
        if (input == none || program.tensor(input).role != Role::activation) continue;
        if (program.tensor(input).partOf != none) continue;
        const std::size_t candidate = bufferOf[static_cast<std::size_t>(input)];
        if (last[static_cast<std::size_t>(input)] != index || bytesOf(program.tensor(input)) != bytes ||
            !overwrites(node, static_cast<int>(output), input)) {
          continue;
        }
        buffer = candidate;
        break;
      }
      if (buffer == buffers.size()) {
        add(id, index);
        continue;
      }
      bufferOf[static_cast<std::size_t>(id)] = buffer;
      buffers[buffer].tensors.push_back(id);
      buffers[buffer].last = std::max(buffers[buffer].last, last[static_cast<std::size_t>(id)]);
    }
  }
  return buffers;
}

}  // namespace tandem::graph::detail
