#pragma once
// Runs a program on the reference backend inside one planned arena, the way the runtime does.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/graph/passes.h"
#include "common/graph/program.h"

namespace tandem::graph::test {

using Values = std::map<std::string, std::vector<float>>;
using Batch = std::map<std::string, std::vector<std::int32_t>>;  // by input

// Small random numbers; around one for the weights of norms.
Values randomParameters(const Program& program, std::uint64_t seed = 1);
// Tokens, targets (some absent), two documents in a row.
Batch randomBatch(const Program& program, std::uint64_t seed = 1);

class ProgramRunner {
 public:
  // With `poison` the memory of every activation is filled with NaN before it is written and after it was read last.
  explicit ProgramRunner(const Program& program, bool poison = false);

  Values parameters;
  float gradScale = 1;
  // One micro batch; returns the losses. Outputs and gradients start as NaN, so that whoever forgets to overwrite them
  // in the first micro batch is found out.
  std::vector<float> run(const Batch& batch, bool firstMicroBatch = true);
  // Sum of the losses of one run.
  double loss(const Batch& batch);
  Values gradients() const;

 private:
  void poison(std::size_t node, bool before);
  kernels::TensorView viewOf(TensorId id);

  Program program_;
  MemoryPlan plan_;
  bool poison_;
  std::vector<std::byte> arena_;
  std::map<TensorId, std::vector<std::byte>> outside_;  // memory of all tensors that are no activations
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::Stream> stream_;
};

}  // namespace tandem::graph::test
