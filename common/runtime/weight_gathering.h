#pragma once
// Brings a program the weights that its ranks share out (ZeRO stage 3), bucket by bucket.

#include <map>
#include <memory>

#include "common/comm/communicator.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"

namespace tandem::runtime {

class WeightGathering : public WeightSource {
 public:
  // `replicas` are the ranks of the store's layout. Both live as long.
  WeightGathering(const ParameterStore& parameters, comm::Communicator& replicas)
      : parameters_(parameters), replicas_(replicas) {}

  void gather(std::int32_t bucket, void* target) override;
  void wait(std::int32_t bucket) override;
  void progress() override;

 private:
  const ParameterStore& parameters_;
  comm::Communicator& replicas_;
  std::map<std::int32_t, std::unique_ptr<comm::Request>> underWay_;  // null once complete
};

}  // namespace tandem::runtime
