#pragma once
// The process grid: pipeline x data x context x tensor, tensor fastest, so that the ranks that talk most are neighbours
// and share a node.
//
//   rank = ((pipeline * data axis + data) * context axis + context) * tensor axis + tensor
//
// Ranks that differ only in their tensor coordinate share the layers of one stage and the same tokens; those that
// differ only in the context coordinate share the same rows, each a part of the positions; those that differ only in
// the data coordinate compute other rows; those that differ only in the pipeline coordinate hold other layers.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/model/configuration.h"

namespace tandem::sharding {

struct Grid {
  int pipeline = 1;
  int data = 1;
  int context = 1;
  int tensor = 1;
  // What is shared out over the ranks that hold the same parameters (ZeRO, Rajbhandari et al. 2020): 0 nothing,
  // 1 optimizer states, 2 gradients too, 3 weights too.
  int zero = 1;
  // Runs of layers that each pipeline rank holds, its virtual stages: more than one are interleaved (pipeline.h).
  int virtualStages = 1;

  int ranks() const { return pipeline * data * context * tensor; }
  // Of the pipeline, virtual ones included.
  int stages() const { return pipeline * virtualStages; }
  // A step's micro batches come in multiples of this.
  int microBatchUnit() const { return virtualStages > 1 ? pipeline : 1; }
  // Ranks that hold the same parameters.
  int replicas() const { return data * context; }
  // Over how many of these the optimizer's states are shared out.
  int sharers() const { return zero == 0 ? 1 : replicas(); }
  bool sharesGradients() const { return zero >= 2 && replicas() > 1; }
  bool sharesWeights() const { return zero >= 3 && replicas() > 1; }
  // "dp=2,tp=2,pp=1,cp=1,zero=1", as parseGrid reads it; with ",vp=2" where there are virtual stages.
  std::string text() const;
  bool operator==(const Grid&) const = default;
};

struct Coordinates {
  int pipeline = 0;
  int data = 0;
  int context = 0;
  int tensor = 0;
  bool operator==(const Coordinates&) const = default;
};

// Interleaved stages send around a ring, from the last pipeline rank on to the first. A group of ranks without tags
// (NCCL) carries out messages in the order of their start, each when both its sides have come to it; were all links of
// the ring one group, every rank could wait for its own message to the next to be taken before it takes that of the one
// before. So no rank has two links of one group: they take turns between two of them, where their number is odd three.
int linkGroups(int pipelineRanks);
// That of the link from a pipeline rank to the next.
int linkGroup(int before, int pipelineRanks);

Coordinates coordinatesOf(const Grid& grid, int rank);
int rankAt(const Grid& grid, const Coordinates& coordinates);

// Reads "dp=2,tp=2,pp=1,cp=1,zero=1" in any order. An axis that is left out is 1; dp, when left out, takes the ranks
// that the others leave. Throws Error of kind usage naming what is wrong, and for a grid that is not of that many ranks
// the grids that are.
Grid parseGrid(const std::string& text, int ranks);

// Why the grid cannot split that model: "tp=3 is more than the model's 2 heads"; empty when it can. A sequence length
// of 0 is one not known yet.
std::string whyNotFitting(const Grid& grid, const model::Configuration& configuration, std::int64_t sequenceLength);

// All grids of that many ranks that can split the model, by falling data axis; with ZeRO stage 1.
std::vector<Grid> fittingGrids(int ranks, const model::Configuration& configuration, std::int64_t sequenceLength);

// Throws Error of kind usage with the reason why a grid is none for the purpose, and those that are.
[[noreturn]] void refuseGrid(const Grid& grid, const std::string& reason, const std::vector<Grid>& fitting);

// Throws Error of kind usage with whyNotFitting and the grids that would fit.
void demandFitting(const Grid& grid, const model::Configuration& configuration, std::int64_t sequenceLength);

// The groups that a rank of a grid exchanges with: ranks that differ from it in one axis alone, in the order of that
// coordinate, and the replicas, which differ in data or context. Made of any communicator over all ranks of the grid,
// that of the host's memory or that of a device's.
class GridGroups {
 public:
  // Collective. `world` must live as long.
  GridGroups(comm::Communicator& world, const Grid& grid);

  const Grid& grid() const { return grid_; }
  const Coordinates& own() const { return own_; }
  comm::Communicator& world() { return world_; }
  comm::Communicator& tensor() { return tensor_ ? *tensor_ : world_; }
  comm::Communicator& context() { return context_ ? *context_ : world_; }
  comm::Communicator& pipeline() { return pipeline_ ? *pipeline_ : world_; }
  // The ranks of the pipeline once more, for messages over the link from the pipeline rank `before` to the next: those
  // to later stages, and apart from them those back, since one kind may be waiting for its receivers.
  comm::Communicator& link(int before, bool isForward);
  comm::Communicator& replicas() { return replicas_ ? *replicas_ : world_; }

 private:
  comm::Communicator& world_;
  Grid grid_;
  Coordinates own_;
  // None where the group is the world.
  std::unique_ptr<comm::Communicator> tensor_, context_, pipeline_, replicas_;
  // By link group; of a pipeline that is not interleaved one each, and the first forward one is pipeline().
  std::vector<std::unique_ptr<comm::Communicator>> links_, linksBack_;
};

// A table of which rank, on which host, has which coordinates. Collective.
std::string gridMap(comm::Communicator& world, const Grid& grid);

}  // namespace tandem::sharding
