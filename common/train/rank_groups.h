#pragma once
// A rank of the process grid: where it stands, and the groups it exchanges with, on the host and on the device.

#include <optional>

#include "common/sharding/grid.h"
#include "common/train/device.h"

namespace tandem::train {

class RankGroups {
 public:
  // Collective.
  RankGroups(comm::Communicator& ranks, const Device& device, const sharding::Grid& grid) : host_(ranks, grid) {
    if (device.exchange != nullptr) device_.emplace(*device.exchange, grid);
  }

  const sharding::Grid& grid() const { return host_.grid(); }
  const sharding::Coordinates& own() const { return host_.own(); }
  // For scalars and texts, and for memory of the device that computes.
  sharding::GridGroups& host() { return host_; }
  sharding::GridGroups& device() { return device_ ? *device_ : host_; }

  // Tensor ranks and pipeline stages see the same tokens: one of them speaks for all where tokens are counted, and one
  // that has the losses where these are.
  bool countsTokens() const { return own().tensor == 0 && own().pipeline == 0; }
  bool countsLosses() const { return own().tensor == 0 && own().pipeline == grid().pipeline - 1; }

 private:
  sharding::GridGroups host_;
  std::optional<sharding::GridGroups> device_;
};

}  // namespace tandem::train
