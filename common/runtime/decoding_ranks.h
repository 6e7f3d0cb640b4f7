#pragma once
// The ranks that decode together: those of a grid that hold one copy of a model between them, tensor ranks of pipeline
// stages. All of them take the same tokens at the same time.

#include <functional>
#include <memory>
#include <span>

#include "common/runtime/activation_exchange.h"
#include "common/sharding/grid.h"

namespace tandem::runtime {

class DecodingRanks {
 public:
  // `host` for the host's memory, `device` for that of the device that computes (which may be the same); they live as
  // long. Collective over the grid, which has no context ranks.
  DecodingRanks(sharding::GridGroups& host, sharding::GridGroups& device);

  const sharding::Grid& grid() const { return host_.grid(); }
  const sharding::Coordinates& own() const { return host_.own(); }

  sharding::GridGroups& device() { return device_; }
  comm::Communicator& tensor() { return host_.tensor(); }
  comm::Communicator& copy() { return *copy_; }  // all ranks of this copy of the model; the first stage's come first

  // In copy(): the rank that a caller may listen to, and the one that chooses tokens, which is of the last stage.
  bool isFirst() const { return copy_->rank() == 0; }
  int chooser() const { return (grid().pipeline - 1) * grid().tensor; }
  bool isChooser() const { return copy_->rank() == chooser(); }

  // `work` fills `values` on rank `root` of copy(); all ranks have them afterwards, or throw its error.
  void share(int root, std::span<std::int32_t> values, const std::function<void()>& work);

 private:
  sharding::GridGroups& host_;
  sharding::GridGroups& device_;
  std::unique_ptr<comm::Communicator> copy_;
};

}  // namespace tandem::runtime
