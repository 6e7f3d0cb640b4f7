#pragma once
// How a model that decodes over a KV cache is split over the ranks of a grid.
//
// Pipeline stages have layers with their caches, the first one the embedding too and the last one the projection onto
// the vocabulary. Tensor ranks have of each layer heads, with the caches of their key-value heads, and columns of the
// MLP (partition.h); those of the last stage have of the projection the tokens of some blocks of rows. Data ranks have
// a copy of all this each.

#include <map>
#include <string>
#include <vector>

#include "common/graph/program.h"
#include "common/model/configuration.h"
#include "common/model/transformer.h"
#include "common/sharding/grid.h"
#include "common/sharding/partition.h"

namespace tandem::sharding {

// One rank's share.
class DecodingSplit {
 public:
  // `quantised`: inputs of products are cut between groups of them that share a scale. The grid must fit
  // (demandDecoding), and `configuration` lives as long.
  DecodingSplit(const model::Configuration& configuration, const Grid& grid, const Coordinates& own, bool quantised,
                model::CacheFormat caches = model::CacheFormat::asStored);

  // Of the program of model::buildDecode: this rank's part of it, exchanges included.
  graph::Program body(std::int64_t batch, std::int64_t fresh, std::int64_t capacity, graph::DType storage) const;
  // Of the program of model::buildHead: "logits" [rows, tokens().count]. Of the last stage alone.
  graph::Program head(std::int64_t rows, graph::DType storage) const;

  bool hasHead() const { return own_.pipeline == grid_.pipeline - 1; }
  // Whose logits a tensor rank computes, and this one. A rank may have none.
  Range tokensOf(int tensorRank) const;
  Range tokens() const { return tokensOf(own_.tensor); }
  // The head's matrix, and the row of what is held of it here that the first of tokens() has: a table that is the
  // embedding's as well is held whole.
  const char* headMatrix() const { return configuration_.tiedEmbeddings ? "embedding.weight" : "head.weight"; }
  std::int64_t firstHeadRow() const;

  // What this rank holds of the model, as a program that names its parameters, without their use.
  PartitionedProgram parameters(graph::DType storage) const;

 private:
  PartitionedProgram part(std::int64_t batch, std::int64_t fresh, std::int64_t capacity, graph::DType storage) const;

  const model::Configuration& configuration_;
  Grid grid_;
  Coordinates own_;
  std::int64_t columnGroup_;
  model::CacheFormat caches_;
  std::vector<Range> layers_;  // of each stage
};

// Throws Error of kind usage for a grid that cannot decode that model, naming those that can. `quantised`: the matrices
// are; then no rank's part may begin inside of a group of inputs that share a scale, which is what the activations that
// they are multiplied with have as well: the ranks give what one rank gives.
void demandDecoding(const Grid& grid, const model::Configuration& configuration, bool quantised);

}  // namespace tandem::sharding
