#pragma once
// What a micro batch costs a rank of one pipeline stage, counted from the program that it runs: the operations, the
// memory traffic and the exchanges of its nodes, and what is alive in its memory plan.
//
// Counts are of one row of the program and hold for any number of rows: but for whole buckets of parameters, every
// tensor grows with them. A stage of many layers follows from one of a few, since all layers are alike.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/graph/passes.h"
#include "common/model/configuration.h"
#include "common/sharding/rank_program.h"

namespace tandem::sharding {

// A stage of a split model.
struct StageShape {
  graph::Recompute recompute = graph::Recompute::nothing;
  int tensor = 1;
  bool ring = false;  // attention goes round the ranks of a context axis; counted as for two of them
  int zero = 0;       // 2 and 3: what is shared out of gradients and weights; else 0
  // The first stage has the embedding, the last the projection onto the vocabulary and the loss.
  bool isFirst = true, isLast = true;
  auto operator<=>(const StageShape&) const = default;
};

enum class Exchange : std::uint8_t { none, tensor, context };

struct NodeCount {
  graph::Operator op = graph::Operator::add;
  bool backward = false;
  bool ofInnerLayer = false;   // one between others
  double parameterBytes = 0;   // of weights and their gradients: the same for any number of rows
  double flops = 0;            // these grow with the rows
  double activationBytes = 0;  // read and written
  Exchange exchange = Exchange::none;
  double exchangedBytes = 0;  // the whole that is gathered or summed up; what one turn of a ring carries
  bool operator==(const NodeCount&) const = default;
};

// Buckets of parameters that a micro batch exchanges beside computing.
struct BucketCount {
  double gradients = 0;   // sums of ZeRO 2 and 3, each of one bucket
  double gatherings = 0;  // of weights; ZeRO 3
  double forwardBytes = 0, backwardBytes = 0;
  double firstBytes = 0;  // of the first gathering of both passes, which nothing is computed beside
};

struct StageMemory {
  std::int64_t parameters = 0;     // elements, as the flat buffers have them
  std::int64_t largestBucket = 0;  // elements, where buckets are by layer
  std::int64_t inputs = 0;         // bytes of tokens, targets, losses and the like
  graph::LiveBytes peak;           // in the arena, when most is alive
};

// The programs of stages of one row, each made once, since many shapes share them.
class StagePrograms {
 public:
  StagePrograms(const model::Configuration& configuration, std::int64_t sequenceLength, base::DType storage)
      : configuration_(configuration), sequenceLength_(sequenceLength), storage_(storage) {}

  const PartitionedProgram& forward(const StageShape& shape, std::int64_t layers);
  // With the backward pass, without exchanges of parameters.
  const graph::Program& training(const StageShape& shape, std::int64_t layers);

 private:
  using Key = std::pair<StageShape, std::int64_t>;

  model::Configuration configuration_;
  std::int64_t sequenceLength_;
  base::DType storage_;
  std::map<Key, PartitionedProgram> forward_;
  std::map<Key, graph::Program> differentiated_, training_;
};

class StageCounts {
 public:
  // Of stages of any number of layers. `bucketElements` as FlatLayout has them. `programs` lives as long.
  StageCounts(StagePrograms& programs, std::int64_t bucketElements, const StageShape& shape)
      : programs_(programs), bucketElements_(bucketElements), shape_(shape) {}

  // Half a row is one of half as many tokens.
  StageMemory memory(std::int64_t layers, double rows) const;
  BucketCount buckets(std::int64_t layers) const;
  // Calls `visit` for all nodes, with how many like each there are.
  void visitNodes(std::int64_t layers, const std::function<void(const NodeCount&, double times)>& visit) const;

 private:
  static constexpr std::int64_t few = 3;

  // Counted from a program of so many layers.
  struct Counted {
    std::int64_t parameters = 0, largestBucket = 0;
    std::int64_t inputs = 0;
    // When most can be alive: at the nodes of the first layers and what surrounds them, where more layers change
    // nothing, and at the rest, where every layer more keeps as much.
    std::vector<graph::LiveBytes> ofFirstLayers, ofRest;
    BucketCount buckets;
    std::vector<std::pair<NodeCount, double>> nodes;  // and how many like each there are
  };
  const Counted& counted(std::int64_t layers) const;

  StagePrograms& programs_;
  std::int64_t bucketElements_;
  StageShape shape_;
  mutable std::array<std::optional<Counted>, few + 1> counted_;  // of one layer, of two, ...; made when asked for
};

}  // namespace tandem::sharding
