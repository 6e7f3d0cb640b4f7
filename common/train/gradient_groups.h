#pragma once
// The norm of the gradient by part of the model: the embedding, groups of layers, the head with the last norm.

#include <string>
#include <utility>
#include <vector>

#include "common/comm/communicator.h"
#include "common/model/configuration.h"
#include "common/optim/optimizer.h"
#include "common/sharding/flat_layout.h"

namespace tandem::train {

class GradientGroups {
 public:
  static constexpr std::int64_t mostLayerGroups = 12;  // more curves cannot be told apart

  GradientGroups(const model::Configuration& configuration, const sharding::FlatLayout& layout,
                 const optim::Optimizer& optimizer);

  // After gradientNorm(); of gradients that are `scale` times as large as they should be. Collective over all ranks.
  std::vector<std::pair<std::string, double>> norms(double scale, comm::Communicator& communicator) const;

 private:
  const optim::Optimizer& optimizer_;
  std::vector<std::string> names_;
  std::vector<std::size_t> groupOfRun_;
};

}  // namespace tandem::train
