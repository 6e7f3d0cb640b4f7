#pragma once
// Carries out the nodes of a program that exchange activations between ranks of the process grid.

#include <memory>
#include <span>
#include <vector>

#include "common/graph/program.h"
#include "common/sharding/grid.h"
#include "kernels/backend.h"

namespace tandem::runtime {

class ActivationExchange {
 public:
  // `groups` are for memory of the device that computes, and live as long.
  explicit ActivationExchange(sharding::GridGroups& groups) : groups_(groups) {}

  // `views` by TensorId. What is sent must stay untouched until waitForSends.
  void run(const graph::Node& node, std::span<const kernels::TensorView> views, kernels::Backend& backend,
           kernels::Stream& stream);
  void waitForSends();

 private:
  void exchangeMessage(const graph::Node& node, std::span<const kernels::TensorView> views);
  void exchangeRows(const graph::Node& node, std::span<const kernels::TensorView> views);

  sharding::GridGroups& groups_;
  std::vector<std::unique_ptr<comm::Request>> sends_;
};

}  // namespace tandem::runtime
