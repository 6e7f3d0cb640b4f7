#include "common/sharding/partition.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/graph/operators.h"

namespace tandem::sharding {
namespace {

using graph::Node;
using graph::none;
using graph::Operator;
using graph::Program;
using graph::Role;
using graph::Shape;
using graph::SplitRule;
using graph::Tensor;
using graph::TensorId;

bool isGated(const Node& node) {
  return node.op == Operator::activation &&
         std::get<graph::ActivationAttributes>(node.attributes).kind == kernels::ActivationKind::swiglu;
}

// What the ranks have of the residual stream, and in which groups the MLP's columns are dealt out.
struct Style {
  bool wholeStream = false;
  std::int64_t columnGroup = 1;
};

kernels::HeadLayout layoutOf(const Node& node) {
  if (const auto* rotary = std::get_if<graph::RotaryAttributes>(&node.attributes)) return rotary->layout;
  if (const auto* ring = std::get_if<graph::RingAttributes>(&node.attributes)) return ring->attention.layout;
  return std::get<graph::AttentionAttributes>(node.attributes).layout;
}

class Partitioner {
 public:
  Partitioner(const Program& forward, int rank, int ranks, const Style& style)
      : source_(forward),
        rank_(rank),
        ranks_(ranks),
        style_(style),
        byRows_(forward.tensors().size(), none),
        whole_(forward.tensors().size(), none),
        byColumns_(forward.tensors().size(), none),
        columns_(forward.tensors().size()) {}

  PartitionedProgram run() {
    for (std::size_t index = 0; index < source_.nodes().size(); ++index) {
      const Node& node = source_.nodes()[index];
      result_.program.setLayer(node.layer);
      switch (graph::splitRule(node.op)) {
        case SplitRule::rows:
          splitRows(node);
          break;
        case SplitRule::columns:
          splitColumns(node);
          break;
        case SplitRule::heads:
          splitHeads(node);
          break;
        case SplitRule::product:
          if (byColumns_[at(node.inputs[0])] != none) {
            splitTerms(node);
          } else {
            splitOutputs(node, index);
          }
          break;
        case SplitRule::table:
          splitTable(node);
          break;
        case SplitRule::vocabulary:
          splitVocabulary(node);
          break;
        case SplitRule::message:
          passOn(node);
          break;
        case SplitRule::unsplit:
          refuse(node);
      }
    }
    result_.program.setLayer(-1);
    return std::move(result_);
  }

 private:
  static std::size_t at(TensorId id) { return static_cast<std::size_t>(id); }
  const Tensor& tensor(TensorId id) const { return source_.tensor(id); }
  Program& program() { return result_.program; }

  [[noreturn]] void refuse(const Node& node) const {
    throw base::Error(base::ErrorKind::usage, std::string("the operator ") + graph::name(node.op) +
                                                  " cannot be split over tensor ranks; use tp=1");
  }

  TensorId add(const std::string& name, const Shape& shape, const Tensor& like) {
    return program().addTensor(name, shape, like.type, like.role);
  }

  // --- rows of the residual stream
  // ------------------------------------------------------------------------------------

  std::vector<std::int64_t> rowCounts(const Shape& shape) const {
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < ranks_; ++rank) counts.push_back(evenShare(shape.rows(), ranks_, rank).count);
    return counts;
  }

  graph::ExchangeAttributes exchangeOf(const Shape& shape) const { return {.rows = rowCounts(shape), .rank = rank_}; }

  // This rank's rows of a tensor of the source: [rows, last]; all of it where the stream is whole.
  TensorId makeRows(TensorId id) {
    const Tensor& full = tensor(id);
    if (style_.wholeStream) return byRows_[at(id)] = add(full.name, full.shape, full);
    const std::int64_t own = evenShare(full.shape.rows(), ranks_, rank_).count;
    return byRows_[at(id)] = add(full.name, {own, full.shape.last()}, full);
  }

  TensorId rowsOf(TensorId id, const Node& reader) const {
    if (id != none && byRows_[at(id)] == none) refuse(reader);
    return id == none ? none : byRows_[at(id)];
  }

  // All rows, gathered at their first use.
  TensorId wholeOf(TensorId id, const Node& reader) {
    if (style_.wholeStream) return rowsOf(id, reader);
    if (whole_[at(id)] != none) return whole_[at(id)];
    const Tensor& full = tensor(id);
    const TensorId rows = rowsOf(id, reader);
    whole_[at(id)] = add(full.name + ".gathered", full.shape, full);
    program().addNode(Operator::gatherRows, {rows}, {whole_[at(id)]}, exchangeOf(full.shape));
    return whole_[at(id)];
  }

  // The sum over ranks of what `node`, whose output this is, gives on each; every rank has its rows of it, or all.
  void sumRows(Node node, std::size_t output) {
    const TensorId id = node.outputs[output];
    const Tensor& full = tensor(id);
    const TensorId summand = program().addTensor(full.name + ".summand", full.shape, full.type, Role::activation);
    node.outputs[output] = summand;
    append(std::move(node));
    if (style_.wholeStream) return sumElements(summand, id);
    program().addNode(Operator::scatterRows, {summand}, {makeRows(id)}, exchangeOf(full.shape));
  }

  // Each rank sums a part of the elements and gives it to all.
  void sumElements(TensorId summand, TensorId id) {
    const Tensor& full = tensor(id);
    graph::ExchangeAttributes exchange{.rows = {}, .rank = rank_};
    for (int rank = 0; rank < ranks_; ++rank) {
      exchange.rows.push_back(evenShare(full.shape.count(), ranks_, rank).count);
    }
    const TensorId dealt = program().addTensor(full.name + ".dealt", {exchange.rows[static_cast<std::size_t>(rank_)]},
                                               full.type, Role::activation);
    program().addNode(Operator::scatterRows, {summand}, {dealt}, exchange);
    program().addNode(Operator::gatherRows, {dealt}, {makeRows(id)}, exchange);
  }

  void append(Node node) {
    program().addNode(node.op, std::move(node.inputs), std::move(node.outputs), std::move(node.attributes));
  }

  // Norm and add: each row by itself. A parameter works on all rows alike: every rank has it.
  void splitRows(Node node) {
    for (TensorId& id : node.inputs) {
      if (id == none) continue;
      id = tensor(id).role == Role::parameter ? everywhere(id) : rowsOf(id, node);
    }
    const std::int64_t rows = tensor(node.outputs[node.op == Operator::norm ? 1 : 0]).shape.rows();
    for (TensorId& id : node.outputs) {
      if (id == none) continue;
      const Tensor& full = tensor(id);
      if (style_.wholeStream || full.shape.rows() == rows) {
        id = makeRows(id);
      } else {  // a statistic, one a row
        const TensorId made = add(full.name, {evenShare(rows, ranks_, rank_).count}, full);
        byRows_[at(id)] = made;
        id = made;
      }
    }
    append(std::move(node));
  }

  // --- parameters
  // -----------------------------------------------------------------------------------------------------

  TensorId parameter(TensorId id, const Part& part) {
    const Tensor& full = tensor(id);
    const TensorId found = program().find(full.name);
    if (found != none) return found;
    result_.parts[full.name] = part;
    return add(full.name, part.shape(), full);
  }

  TensorId everywhere(TensorId id) {
    const Shape& shape = tensor(id).shape;
    return parameter(id, Part(shape, 0, {{{0, shape[0]}, 0, ranks_}}, rank_));
  }

  // By tokens or positions: rows of the table.
  TensorId tableRows(TensorId id) {
    const Shape& shape = tensor(id).shape;
    return parameter(id, Part(shape, 0, {{evenShare(shape[0], ranks_, rank_), rank_, 1}}, rank_));
  }

  // --- columns
  // --------------------------------------------------------------------------------------------------------

  HeadShare headsOf(const Node& node) const {
    const kernels::HeadLayout layout = layoutOf(node);
    return headShare(layout.heads, layout.kvHeads, ranks_, rank_);
  }

  // The columns of a product's output that this rank has, by what its first reader can be split into.
  std::vector<HeldRange> columnsFor(std::size_t index) const {
    const Node& node = source_.nodes()[index];
    const TensorId output = node.outputs[1];
    for (std::size_t later = index + 1; later < source_.nodes().size(); ++later) {
      const Node& reader = source_.nodes()[later];
      if (reader.inputs.empty() || reader.inputs[0] != output) continue;
      const SplitRule rule = graph::splitRule(reader.op);
      if (rule == SplitRule::heads) return fusedColumns(layoutOf(reader));
      if (rule == SplitRule::columns) return evenColumns(tensor(output).shape.last(), isGated(reader) ? 2 : 1);
      break;
    }
    refuse(node);
  }

  // `blocks` blocks of columns side by side, of each an even share of its groups.
  std::vector<HeldRange> evenColumns(std::int64_t count, std::int64_t blocks) const {
    std::vector<HeldRange> ranges;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t columns = count / blocks, group = style_.columnGroup;
      const Range groups = evenShare((columns + group - 1) / group, ranks_, rank_);
      const std::int64_t begin = groups.begin * group, end = std::min(groups.end() * group, columns);
      ranges.push_back({{block * columns + begin, end - begin}, rank_, 1});
    }
    return ranges;
  }

  // Queries, keys and values of this rank's heads.
  std::vector<HeldRange> fusedColumns(const kernels::HeadLayout& layout) const {
    const HeadShare share = headShare(layout.heads, layout.kvHeads, ranks_, rank_);
    const std::int64_t size = layout.headSize;
    std::vector<HeldRange> ranges = {{{share.heads.begin * size, share.heads.count * size}, rank_, 1}};
    for (const std::int64_t firstHead : {layout.heads, layout.heads + layout.kvHeads}) {
      ranges.push_back(
          {{(firstHead + share.kvHeads.begin) * size, share.kvHeads.count * size}, share.firstHolder, share.holders});
    }
    return ranges;
  }

  TensorId makeColumns(TensorId id, std::vector<HeldRange> ranges) {
    const Tensor& full = tensor(id);
    Shape shape = full.shape;
    shape[shape.rank() - 1] = 0;
    for (const HeldRange& held : ranges) shape[shape.rank() - 1] += held.range.count;
    columns_[at(id)] = std::move(ranges);
    return byColumns_[at(id)] = add(full.name, shape, full);
  }

  // All of the input, some of the outputs.
  void splitOutputs(Node node, std::size_t index) {
    const std::vector<HeldRange> ranges = columnsFor(index);
    node.inputs[0] = wholeOf(node.inputs[0], node);
    for (const std::size_t operand : {std::size_t{1}, std::size_t{2}}) {
      const TensorId id = node.inputs[operand];
      if (id != none) node.inputs[operand] = parameter(id, Part(tensor(id).shape, 0, ranges, rank_));
    }
    node.outputs[1] = makeColumns(node.outputs[1], ranges);
    append(std::move(node));
  }

  // Some of the input: a summand of the outputs, to which one rank alone adds the bias; of the others' none is held.
  void splitTerms(Node node) {
    const TensorId input = node.inputs[0], weight = node.inputs[1], bias = node.inputs[2];
    node.inputs[0] = byColumns_[at(input)];
    node.inputs[1] = parameter(weight, Part(tensor(weight).shape, 1, columns_[at(input)], rank_));
    if (bias != none) {
      const Shape& shape = tensor(bias).shape;
      const std::vector<HeldRange> held = {{{0, rank_ == 0 ? shape[0] : 0}, 0, 1}};
      Part part(shape, 0, held, rank_);
      part.markOfOneRank();
      const TensorId own = parameter(bias, part);
      node.inputs[2] = rank_ == 0 ? own : none;
    }
    sumRows(std::move(node), 1);
  }

  void splitColumns(Node node) {
    const TensorId input = node.inputs[0];
    if (byColumns_[at(input)] == none) refuse(node);
    node.inputs[0] = byColumns_[at(input)];
    // A gate and its value give one column, which is numbered as the gate's.
    node.outputs[0] = makeColumns(node.outputs[0], {columns_[at(input)].front()});
    append(std::move(node));
  }

  // Rotary and attention: the fused columns stay what they are, or become the heads' outputs.
  void splitHeads(Node node) {
    const TensorId fused = node.inputs[0];
    if (byColumns_[at(fused)] == none) refuse(node);
    const kernels::HeadLayout layout = headsOf(node).layout(layoutOf(node).headSize);
    for (TensorId& id : node.inputs) {
      if (id == none) continue;
      id = id == fused                          ? byColumns_[at(id)]
           : tensor(id).role == Role::parameter ? everywhere(id)
           : tensor(id).role == Role::state     ? makeResized(id, 1, layout.kvHeads)
                                                : input(id);
    }
    const TensorId output = node.outputs[0], statistic = node.outputs.size() > 1 ? node.outputs[1] : none;
    if (auto* rotary = std::get_if<graph::RotaryAttributes>(&node.attributes)) {
      rotary->layout = layout;
      node.outputs[0] = makeColumns(output, columns_[at(fused)]);
      if (statistic != none) node.outputs[1] = makeResized(statistic, 2, layout.heads + layout.kvHeads);
    } else if (auto* ring = std::get_if<graph::RingAttributes>(&node.attributes)) {
      ring->attention.layout = layout;
      node.outputs[0] = makeColumns(output, {columns_[at(fused)].front()});
      node.outputs[1] = makeResized(statistic, 2, layout.heads);
      node.outputs[2] = makeResized(node.outputs[2], 3, layout.width());
      node.outputs[3] = makeResized(node.outputs[3], 2, layout.heads);
      node.outputs[4] = makeResized(node.outputs[4], 1, layout.heads);
    } else {
      std::get<graph::AttentionAttributes>(node.attributes).layout = layout;
      node.outputs[0] = makeColumns(output, {columns_[at(fused)].front()});
      if (statistic != none) node.outputs[1] = makeResized(statistic, 1, layout.heads);
    }
    append(std::move(node));
  }

  // Of one axis, what this rank has.
  TensorId makeResized(TensorId id, int axis, std::int64_t extent) {
    Shape shape = tensor(id).shape;
    shape[axis] = extent;
    return add(tensor(id).name, shape, tensor(id));
  }

  // --- the vocabulary
  // -------------------------------------------------------------------------------------------------

  TensorId input(TensorId id) {
    const TensorId found = program().find(tensor(id).name);
    return found != none ? found : add(tensor(id).name, tensor(id).shape, tensor(id));
  }

  void splitTable(Node node) {
    const TensorId weight = node.inputs[1], positionWeight = node.inputs[3];
    if (style_.wholeStream) return takeWholeTable(std::move(node));
    auto& part = std::get<graph::EmbeddingAttributes>(node.attributes).part;
    part = {.isPart = true, .firstToken = evenShare(tensor(weight).shape[0], ranks_, rank_).begin};
    node.inputs[0] = input(node.inputs[0]);
    node.inputs[1] = tableRows(weight);
    if (positionWeight != none) {
      part.firstPosition = evenShare(tensor(positionWeight).shape[0], ranks_, rank_).begin;
      node.inputs[2] = input(node.inputs[2]);
      node.inputs[3] = tableRows(positionWeight);
    }
    sumRows(std::move(node), 0);
  }

  void takeWholeTable(Node node) {
    for (TensorId& id : node.inputs) {
      if (id != none) id = tensor(id).role == Role::parameter ? everywhere(id) : input(id);
    }
    node.outputs[0] = makeRows(node.outputs[0]);
    append(std::move(node));
  }

  void splitVocabulary(const Node& node) {
    const TensorId hidden = wholeOf(node.inputs[0], node), targets = input(node.inputs[2]);
    const Tensor& weight = tensor(node.inputs[1]);
    const graph::PartialCrossEntropyAttributes attributes{evenShare(weight.shape[0], ranks_, rank_).begin};
    const TensorId part = tableRows(node.inputs[1]);
    const Tensor& losses = tensor(node.outputs[0]);
    const std::int64_t rows = losses.shape.count();
    const auto activation = [&](const char* name, const Shape& shape) {
      return program().addTensor(losses.name + name, shape, graph::DType::f32, Role::activation);
    };
    const TensorId own = activation(".partials", {2, rows}), all = activation(".gathered", {ranks_, 2, rows});
    const TensorId logSumExp = activation(".log_sum_exp", losses.shape);
    program().addNode(Operator::partialCrossEntropy, {hidden, part, targets}, {own}, attributes);
    const std::vector<std::int64_t> onePartEach(static_cast<std::size_t>(ranks_), 1);
    program().addNode(Operator::gatherRows, {own}, {all},
                      graph::ExchangeAttributes{.rows = onePartEach, .rank = rank_});
    program().addNode(Operator::mergeCrossEntropy, {all, targets, hidden, part},
                      {add(losses.name, losses.shape, losses), logSumExp}, attributes);
  }

  // Messages between stages carry the rows that a rank has.
  void passOn(Node node) {
    for (TensorId& id : node.inputs) id = rowsOf(id, node);
    for (TensorId& id : node.outputs) id = makeRows(id);
    append(std::move(node));
  }

  const Program& source_;
  int rank_, ranks_;
  Style style_;
  PartitionedProgram result_;
  // By TensorId of the source, what stands for it in the result: this rank's rows, all of it, this rank's columns.
  std::vector<TensorId> byRows_, whole_, byColumns_;
  std::vector<std::vector<HeldRange>> columns_;  // which columns these are
};

PartitionedProgram whole(const Program& program) {
  PartitionedProgram result{program, {}};
  for (const TensorId id : program.ofRole(Role::parameter)) {
    result.parts[program.tensor(id).name] = Part(program.tensor(id).shape);
  }
  return result;
}

}  // namespace

PartitionedProgram splitOverTensorRanks(const Program& forward, int rank, int ranks) {
  return ranks > 1 ? Partitioner(forward, rank, ranks, {}).run() : whole(forward);
}

PartitionedProgram splitDecoding(const Program& decode, int rank, int ranks, std::int64_t columnGroup) {
  const Style style{.wholeStream = true, .columnGroup = columnGroup};
  return ranks > 1 ? Partitioner(decode, rank, ranks, style).run() : whole(decode);
}

}  // namespace tandem::sharding
