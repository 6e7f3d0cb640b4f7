#pragma once
// The update of a rank's shard of the parameters, and the gathering of everybody's new weights (ZeRO stage 1).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/comm/communicator.h"
#include "common/runtime/parameter_store.h"
#include "common/runtime/weight_gathering.h"

namespace tandem::optim {

enum class Method {
  adamw,
  muon,  // for the matrices inside the layers; AdamW for the rest
};

// "adamw" or "muon"; throws Error of kind usage otherwise.
Method parseMethod(const std::string& text);

// The type of the moments: "fp32" or "bf16"; throws Error of kind usage otherwise.
base::DType parseStates(const std::string& text);

// Whether moments and masters lie in the host's memory: "device" or "host"; throws Error of kind usage otherwise.
bool parseStatesOnHost(const std::string& text);

struct OptimizerOptions {
  Method method = Method::adamw;
  // Of both moments: float32, or bfloat16 with stochastic rounding (AdamW only), whose random bits are a function of
  // seed, step, parameter and element: the same on any number of ranks, on any backend, and in a resumed run.
  base::DType states = base::DType::f32;
  // Moments and float32 masters lie in pinned memory of the host, where the device's kernels update them over the bus:
  // the same numbers, and the device's memory is left to weights, gradients and activations.
  bool statesOnHost = false;
  std::uint64_t seed = 0;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weightDecay = 0.1f;  // of matrices; norms and biases have none
  float muonMomentum = 0.95f;
};

// What the update must know of a parameter beyond its shape.
struct ParameterTraits {
  bool decays = true;
  bool usesMuon = false;
  std::vector<std::int64_t> rowBlocks;  // rows of the independent matrices that a fused one consists of; Muon only
};

class Optimizer {
 public:
  // `traits` by parameter of the layout, none of which may use Muon with moments in bfloat16 (kind usage);
  // `communicator` are all ranks of the run, `exchange` those that hold the same parameters as this one, for memory of
  // the device. They share out the states where the layout is of as many ranks; where it is of one, each has and
  // updates all.
  Optimizer(const OptimizerOptions& options, std::vector<ParameterTraits> traits, runtime::ParameterStore& parameters,
            comm::Communicator& communicator, comm::Communicator& exchange, kernels::Backend& backend,
            kernels::Stream& stream);

  // Norm of the whole gradient, from the pieces that the ranks own after the exchange. Collective.
  double gradientNorm();
  // The squared norms that it was made of: of this rank's countedRuns, in their order.
  const std::vector<double>& squaredNorms() const { return squaredNorms_; }

  // Updates this rank's shard with gradients multiplied by gradientScale; gatherWeights must follow. `step` counts
  // from 1.
  void update(double learningRate, double gradientScale, std::int64_t step);

  // Brings every rank's part of the new weights to all ranks, where these hold all weights. Collective.
  void gatherWeights();
  // The same, only started.
  void gatherWeights(runtime::WeightArrival& arrival);

  // After the master weights of the owned runs were set from outside: rounds them to the storage type and gathers all
  // weights. Collective.
  void publishMasters();

  // The shards that a checkpoint holds, in the device's memory, laid out by FlatLayout::ownedRuns (shardOffset).
  struct State {
    std::string name;  // "first_moment", "second_moment"
    base::DType type = base::DType::f32;
    std::byte* shard = nullptr;
    void* at(std::int64_t element) const { return shard + element * base::byteSize(type); }
  };
  std::vector<State> states() const;
  // The float32 master weights of an owned run, contiguous, in the device's memory.
  float* master(const sharding::OwnedRun& run) const;
  const std::vector<sharding::OwnedRun>& ownedRuns() const { return runs_; }
  // Those of them that no other rank speaks for (FlatLayout::countedRuns).
  const std::vector<sharding::OwnedRun>& countedRuns() const { return counted_; }

 private:
  std::vector<std::pair<sharding::OwnedRun, std::int64_t>> piecesOf(const sharding::OwnedRun& run) const;
  void updateAdamW(const sharding::OwnedRun& run, std::int64_t firstElement, const ParameterTraits& traits,
                   double learningRate, double gradientScale, std::int64_t step);
  void updateMuon(const sharding::OwnedRun& run, const ParameterTraits& traits, double learningRate,
                  double gradientScale);
  kernels::TensorView lowWeight(const sharding::OwnedRun& run) const;

  OptimizerOptions options_;
  std::vector<ParameterTraits> traits_;
  runtime::ParameterStore& parameters_;
  comm::Communicator& communicator_;
  comm::Communicator& exchange_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  int sharer_ = 0;  // this rank in the layout
  std::vector<sharding::OwnedRun> runs_, counted_;
  std::unique_ptr<runtime::DeviceMemory> firstMoment_;
  std::unique_ptr<runtime::DeviceMemory> secondMoment_;
  std::unique_ptr<runtime::DeviceMemory> master_;       // none when the weights themselves are float32
  std::unique_ptr<runtime::DeviceMemory> muonScratch_;  // two matrices: the direction, and it orthogonalised
  std::unique_ptr<runtime::DeviceMemory> squares_;      // of the gradients of each counted run, float64
  std::vector<double> squaredNorms_;                    // the same in the host's memory
};

}  // namespace tandem::optim
