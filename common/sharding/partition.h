#pragma once
// From the program of a whole model to the program of one tensor rank, exchanges included.
//
// Between the layers' products a tensor rank has some of the rows (positions) of the residual stream, so that norms and
// additions are shared out too (Korthikanti et al. 2022, "Reducing activation recomputation", section 4.2): rows are
// gathered in front of a product, whose columns (heads, columns of the MLP) the ranks have a part of each; the product
// that leads back gives each rank a summand of all rows, and the sums are dealt out again. The embedding's table and
// the projection onto the vocabulary are cut by tokens. Which products are of which kind follows from the splits that
// the operators in between allow (graph::splitRule), so a model says nothing of all this. Gradients follow from
// differentiating the result.

#include <map>
#include <string>

#include "common/graph/program.h"
#include "common/sharding/layout.h"

namespace tandem::sharding {

struct PartitionedProgram {
  graph::Program program;
  std::map<std::string, Part> parts;  // of each parameter that the program names
};

// `forward` is a program with a linearCrossEntropy node, or of a pipeline stage, before any fusion. One rank: the
// program as it is. Throws Error of kind usage for an operator that cannot be split.
PartitionedProgram splitOverTensorRanks(const graph::Program& forward, int rank, int ranks);

// The same of a program over a KV cache (model::buildDecode), or of a stage of it. Its rows are few, down to a single
// one, so every rank has the whole residual stream: sums are dealt out by elements and gathered at once, which gives
// all ranks the same bits. Caches are split with their key-value heads; the embedding's tables are whole, so that
// looking up needs no exchange; columns of the MLP are dealt out in groups of `columnGroup`, of which the last may be
// shorter.
PartitionedProgram splitDecoding(const graph::Program& decode, int rank, int ranks, std::int64_t columnGroup);

}  // namespace tandem::sharding
