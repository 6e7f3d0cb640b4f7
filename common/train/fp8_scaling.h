#pragma once
// The scales of 8-bit operands, delayed: those of a step come from the largest values of the steps before it
// (Micikevicius et al., FP8 Formats for Deep Learning; as Transformer Engine's delayed scaling).
//
// Each rounded linear layer has three operands: its input, its weight and the gradient of its output. A step's kernels
// note the largest absolute value of each over the micro batches; then all ranks take the maximum of theirs, so that
// their number changes nothing. The scale is the largest power of two that leaves room for the largest value of the
// last `historySteps` steps; an operand without history is scaled by its own, when the kernel meets it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/runtime/executable.h"
#include "common/train/device.h"

namespace tandem::train {

class Fp8Scaling {
 public:
  static constexpr std::size_t historySteps = 16;
  static constexpr std::size_t operands = 3;

  // Of the layers with these weights (graph::fp8Weights).
  Fp8Scaling(std::vector<std::string> weights, const Device& device);

  // Gives a program's layers their states.
  void bindTo(runtime::Executable& executable) const;

  // After the passes of a step: its largest values become history, the next step's scales follow from it. A value that
  // is not finite is left out, as is everything of a skipped step. Collective.
  void endStep(bool skipped, comm::Communicator& communicator);

  // The history as JSON: for each weight and operand the largest values of the last steps, the newest last. Numbers
  // read back exactly.
  std::string save() const;
  // Layers that it does not hold begin without history.
  void restore(const std::string& saved);

  // One line for logs: how many layers are rounded, and to what.
  std::string description() const;

  // Of weight number `layer`: what its kernels read; 0 where there is no history.
  float scale(std::size_t layer, std::size_t operand) const;

 private:
  std::vector<float>& historyOf(std::size_t layer, std::size_t operand) {
    return histories_[layer * operands + operand];
  }
  void sendScales();

  std::vector<std::string> weights_;
  Device device_;
  std::unique_ptr<runtime::DeviceMemory> states_;  // [weights, fp8::count]
  std::vector<std::vector<float>> histories_;      // by weight and operand
};

}  // namespace tandem::train
