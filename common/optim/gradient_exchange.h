#pragma once
// The exchange of gradients during the backward pass: each bucket is reduce-scattered as soon as it is complete, in
// place, so that afterwards a rank's own pieces of the flat gradients hold the sum over all ranks. Where the layout is
// of one rank though there are several replicas (ZeRO stage 0), all get all sums.
//
// Where the ranks hold no more than shards of the gradients (ZeRO stages 2 and 3), the buckets lie in the program's
// memory, every micro batch exchanges them, and their sums are added to the shards.
//
// What several tensor ranks hold (norms, shared key-value heads) is first added up over its holders. What two pipeline
// stages hold (a tied embedding) is added up at the end, when both have done their work.

#include <memory>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/comm/wait_timer.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"

namespace tandem::optim {

// Parameters that other pipeline stages hold too, and the ranks that do.
struct StageShared {
  std::vector<std::string> parameters;
  comm::Communicator* holders = nullptr;
};

class GradientExchange : public runtime::Collectives {
 public:
  enum class When {
    besideComputing,
    afterwards,  // when nothing computes: what the exchange takes by itself
  };
  // `replicas` are the ranks that hold the same parameters, `tensor` those that split them; none where nobody does.
  // Collective over both.
  GradientExchange(runtime::ParameterStore& parameters, comm::Communicator& replicas,
                   comm::Communicator* tensor = nullptr, StageShared stages = {}, When when = When::besideComputing);

  void reduceScatter(std::int32_t bucket, void* gradients) override;
  void waitForSums(std::int32_t bucket) override;
  void progress() override;
  // Waits for every exchange that was started. All buckets must have been, once each.
  void finish();
  // Seconds that a program has waited for sums, for whose memory it has other uses, since the last call.
  double takeSecondsWaited() { return timer_.takeSeconds(); }

 private:
  struct SharedRun {
    std::int64_t flatOffset = 0, count = 0;
    std::int32_t bucket = 0;
    comm::Communicator* holders = nullptr;
  };

  // Of a bucket in a program's memory.
  struct Sums {
    std::int32_t bucket = 0;
    float* piece = nullptr;                  // this rank's
    std::unique_ptr<comm::Request> request;  // null once it is complete
  };

  void findSharedRuns(comm::Communicator& tensor);
  void addUpOverHolders(std::int32_t bucket, float* gradients);
  void addUpOverStages();
  void start(std::int32_t bucket, float* gradients);

  runtime::ParameterStore& parameters_;
  comm::Communicator& replicas_;
  std::unique_ptr<comm::Communicator> someHolders_;  // the tensor ranks that share this one's key-value heads
  std::vector<SharedRun> shared_;
  std::vector<SharedRun> sharedByStages_;
  std::vector<std::int32_t> waiting_;  // buckets, for the end, or for what stages share
  std::vector<std::unique_ptr<comm::Request>> underWay_;
  std::size_t firstOpen_ = 0;  // requests before it are complete
  std::vector<Sums> sums_;
  comm::WaitTimer timer_;
  When when_;
  bool isFirstOfStep_ = true;
};

}  // namespace tandem::optim
