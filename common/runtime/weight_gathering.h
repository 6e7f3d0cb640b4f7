#pragma once
// Brings a program weights bucket by bucket: those that its ranks share out (ZeRO stage 3), or those that all ranks
// hold and that are still on their way from the update of the step before.

#include <map>
#include <memory>

#include "common/comm/communicator.h"
#include "common/comm/wait_timer.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"

namespace tandem::runtime {

class WeightGathering : public WeightSource {
 public:
  // `replicas` are the ranks of the store's layout. Both live as long.
  WeightGathering(const ParameterStore& parameters, comm::Communicator& replicas)
      : parameters_(parameters), replicas_(replicas) {}

  // Seconds of waiting since the last call.
  double takeSecondsWaited() { return timer_.takeSeconds(); }

  void gather(std::int32_t bucket, void* target) override;
  void wait(std::int32_t bucket) override;
  void progress() override;

 private:
  const ParameterStore& parameters_;
  comm::Communicator& replicas_;
  std::map<std::int32_t, std::unique_ptr<comm::Request>> underWay_;  // null once complete
  comm::WaitTimer timer_;
};

// What is under way was started by somebody else, who gives it here.
class WeightArrival : public WeightSource {
 public:
  void expect(std::int32_t bucket, std::unique_ptr<comm::Request> request);
  // Waits for all. Until then nobody but a program that waits for its buckets may read or write the weights.
  void finish();
  // Seconds of waiting since the last call.
  double takeSecondsWaited() { return timer_.takeSeconds(); }

  void gather(std::int32_t bucket, void* target) override;
  void wait(std::int32_t bucket) override;
  void progress() override;

 private:
  std::map<std::int32_t, std::unique_ptr<comm::Request>> underWay_;  // null once complete
  comm::WaitTimer timer_;
};

}  // namespace tandem::runtime
