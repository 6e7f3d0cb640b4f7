#pragma once
// The exchange of gradients during the backward pass: each bucket is reduce-scattered as soon as it is complete, in
// place, so that afterwards a rank's own pieces of the flat gradients hold the sum over all ranks.

#include <memory>
#include <vector>

#include "common/comm/communicator.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"

namespace tandem::optim {

class GradientExchange : public runtime::Collectives {
 public:
  GradientExchange(runtime::ParameterStore& parameters, comm::Communicator& communicator);

  void reduceScatter(std::int32_t bucket) override;
  void progress() override;
  // Waits for every exchange that was started. All buckets must have been, once each.
  void finish();

 private:
  runtime::ParameterStore& parameters_;
  comm::Communicator& communicator_;
  std::vector<std::unique_ptr<comm::Request>> underWay_;
  std::size_t firstOpen_ = 0;  // requests before it are complete
};

}  // namespace tandem::optim
