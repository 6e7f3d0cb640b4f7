#pragma once
// What one rank of a grid computes in a training step: its part of the model as a program with all its exchanges. A run
// carries this program out, and the planner counts what it costs.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/graph/adapt.h"
#include "common/graph/passes.h"
#include "common/model/configuration.h"
#include "common/sharding/flat_layout.h"
#include "common/sharding/grid.h"
#include "common/sharding/partition.h"

namespace tandem::sharding {

// The forward pass of a rank's part of the model, of a grid without virtual stages. `layersOfStages` says which layers
// each pipeline stage has; the stages are balanced by what layers cost where it is empty.
PartitionedProgram lossPart(const model::Configuration& configuration, std::int64_t rows, std::int64_t sequenceLength,
                            base::DType storage, const Grid& grid, const Coordinates& own,
                            const std::optional<graph::Adapters>& adapters = {},
                            std::span<const Range> layersOfStages = {});

// The same of each run of layers of a rank, in their order: as many as the grid has virtual stages.
std::vector<PartitionedProgram> lossParts(const model::Configuration& configuration, std::int64_t rows,
                                          std::int64_t sequenceLength, base::DType storage, const Grid& grid,
                                          const Coordinates& own, const std::optional<graph::Adapters>& adapters = {});

// The training program made of it, and the same in two parts: forward and backward pass, and what is computed again.
graph::Program trainingProgram(const graph::Program& loss, graph::Recompute recompute);
graph::Program withBackwardPass(const graph::Program& loss);
graph::Program withRecomputation(const graph::Program& differentiated, graph::Recompute recompute);

// Elements that gradients are exchanged by at least: large enough that an exchange is not dominated by its start, small
// enough that the last one, which nothing is left to hide behind, is short.
constexpr std::int64_t usualBucketElements = 4 << 20;

// That number for a rank's parts of a model: where gradients are kept whole, no more than a sixteenth of all, since
// those that are complete last, and the weights that are needed first, have nothing left to hide behind. Of all that
// the tensor ranks hold together, who have to cut alike.
std::int64_t bucketElements(std::span<const PartitionedProgram> parts, const Grid& grid,
                            std::int64_t most = usualBucketElements);

// The layout of all parameters of a program, or its frozen ones, over `ranks` that hold the same; `parts` says what is
// held here of each of them, all of it where nothing is said. By layer: no bucket reaches from one layer into another,
// and tables outside layers are for themselves.
FlatLayout layoutOf(const graph::Program& program, int ranks, FlatLayout::Ownership ownership,
                    const std::map<std::string, Part>& parts = {}, graph::Role role = graph::Role::parameter,
                    std::int64_t bucketElements = usualBucketElements, bool byLayer = false);

// The layout of the parameters of all parts of a rank. No bucket reaches from one part into another, whose gradients
// are complete at other times.
FlatLayout layoutOf(std::span<const PartitionedProgram> parts, int ranks, FlatLayout::Ownership ownership,
                    std::int64_t bucketElements = usualBucketElements, bool byLayer = false);

// A training program with its exchanges of parameters, of the sharer `rank`.
graph::Program withExchanges(const graph::Program& program, const FlatLayout& layout, const Grid& grid, int rank);

}  // namespace tandem::sharding
