// What a program costs, as totals and as a table for the log.

#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>

#include "common/base/units.h"
#include "common/graph/detail/lifetimes.h"
#include "common/graph/detail/operator_entry.h"
#include "common/graph/operators.h"
#include "common/graph/passes.h"

namespace tandem::graph {
namespace {

struct Row {
  std::string kind;
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
};

// Inputs and outputs are there as often as their program is under way.
Row rowOfRole(std::span<const ProgramInFlight> programs, Role role, const std::string& kind) {
  const bool isOfEach = role == Role::input || role == Role::output;
  Row row{kind, 0, 0};
  std::set<std::string> seen;
  for (const ProgramInFlight& one : programs) {
    for (const TensorId id : one.program.ofRole(role)) {
      const Tensor& tensor = one.program.tensor(id);
      if (tensor.partOf != none || (!isOfEach && !seen.insert(tensor.name).second)) continue;
      const std::int64_t times = isOfEach ? one.times : 1;
      row.tensors += times;
      row.bytes += times * detail::bytesOf(tensor);
    }
  }
  return row;
}

// The first node at which the most is alive.
std::size_t peakNode(const std::vector<detail::Buffer>& buffers, std::size_t nodes) {
  std::int64_t most = -1;
  std::size_t peak = 0;
  for (std::size_t index = 0; index < nodes; ++index) {
    std::int64_t alive = 0;
    for (const auto& buffer : buffers) {
      if (buffer.first <= index && index <= buffer.last) alive += buffer.bytes;
    }
    if (alive > most) {
      most = alive;
      peak = index;
    }
  }
  return peak;
}

// What is alive at the peak of each program, by the operator that has made it, largest first.
std::vector<Row> rowsOfActivations(std::span<const ProgramInFlight> programs) {
  std::vector<Row> rows;
  for (const ProgramInFlight& one : programs) {
    const auto buffers = detail::buffersOf(one.program);
    const std::size_t peak = peakNode(buffers, one.program.nodes().size());
    for (const auto& buffer : buffers) {
      if (peak < buffer.first || buffer.last < peak) continue;
      const std::string kind = std::string("  from ") + name(one.program.nodes()[buffer.first].op);
      auto row = std::ranges::find(rows, kind, &Row::kind);
      if (row == rows.end()) row = rows.insert(rows.end(), {kind, 0, 0});
      row->tensors += one.times;
      row->bytes += one.times * buffer.bytes;
    }
  }
  std::ranges::stable_sort(rows, std::ranges::greater(), &Row::bytes);
  return rows;
}

}  // namespace

std::string memoryTable(std::span<const ProgramInFlight> programs, const std::vector<OtherMemory>& others) {
  std::vector<Row> rows = {
      rowOfRole(programs, Role::parameter, "parameters"), rowOfRole(programs, Role::frozen, "frozen parameters"),
      rowOfRole(programs, Role::gradient, "gradients"),   rowOfRole(programs, Role::state, "states"),
      rowOfRole(programs, Role::input, "inputs"),         rowOfRole(programs, Role::output, "outputs")};
  std::erase_if(rows, [](const Row& row) { return row.tensors == 0; });
  for (const OtherMemory& other : others) rows.push_back({other.kind, 0, other.bytes});
  const std::vector<Row> activations = rowsOfActivations(programs);
  Row peak{"activations at the peak", 0, 0};
  std::int64_t total = 0;
  for (const ProgramInFlight& one : programs) {
    peak.bytes += one.times * one.plan.peakLiveBytes;
    total += one.times * one.plan.arenaBytes;
  }
  const std::int64_t lost = total - peak.bytes;
  for (const Row& row : activations) peak.tensors += row.tensors;
  for (const Row& row : rows) total += row.bytes;
  rows.push_back(peak);
  rows.insert(rows.end(), activations.begin(), activations.end());
  rows.push_back({"lost between activations", 0, lost});
  rows.push_back({"total", 0, total});

  std::ostringstream out;
  out << std::left << std::setw(30) << "memory" << std::right << std::setw(9) << "tensors" << std::setw(14) << "size"
      << std::setw(9) << "share\n";
  for (const Row& row : rows) {
    const double share = total > 0 ? 100.0 * static_cast<double>(row.bytes) / static_cast<double>(total) : 0;
    out << std::left << std::setw(30) << row.kind << std::right << std::setw(9)
        << (row.tensors > 0 ? std::to_string(row.tensors) : "") << std::setw(14) << base::formatBytes(row.bytes)
        << std::setw(7) << std::fixed << std::setprecision(1) << share << "%\n";
  }
  return out.str();
}

ProgramCost totalCost(const Program& program) {
  ProgramCost total;
  for (const Node& node : program.nodes()) {
    const Cost one = cost(program, node);
    total.flops += one.flops;
    total.bytes += one.bytes;
  }
  return total;
}

}  // namespace tandem::graph
