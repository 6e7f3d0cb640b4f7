#include "common/train/gradient_groups.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

namespace tandem::train {

GradientGroups::GradientGroups(const model::Configuration& configuration, const sharding::FlatLayout& layout,
                               const optim::Optimizer& optimizer)
    : optimizer_(optimizer) {
  // The same groups on every rank, whatever it has of the model.
  const std::int64_t layers = configuration.layers, size = (layers + mostLayerGroups - 1) / mostLayerGroups;
  names_.push_back("embedding");
  for (std::int64_t first = 0; first < layers; first += size) {
    const std::int64_t last = std::min(first + size, layers) - 1;
    names_.push_back(first == last ? "layer " + std::to_string(first)
                                   : "layers " + std::to_string(first) + " to " + std::to_string(last));
  }
  names_.push_back("head");
  for (const sharding::OwnedRun& run : optimizer.countedRuns()) {
    const std::string_view name = layout.parameters()[static_cast<std::size_t>(run.parameter)].name;
    constexpr std::string_view prefix = "layers.";
    std::int64_t layer = 0;
    if (name.starts_with(prefix)) {
      std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
      groupOfRun_.push_back(static_cast<std::size_t>(1 + layer / size));
    } else {
      groupOfRun_.push_back(name.starts_with("embedding.") ? 0 : names_.size() - 1);
    }
  }
}

std::vector<std::pair<std::string, double>> GradientGroups::norms(double scale,
                                                                  comm::Communicator& communicator) const {
  std::vector<double> sums(names_.size());
  for (std::size_t i = 0; i < groupOfRun_.size(); ++i) sums[groupOfRun_[i]] += optimizer_.squaredNorms()[i];
  communicator.allReduce({sums.data(), base::DType::f64, std::ssize(sums)});
  std::vector<std::pair<std::string, double>> norms;
  for (std::size_t i = 0; i < sums.size(); ++i) norms.emplace_back(names_[i], std::sqrt(sums[i]) / scale);
  return norms;
}

}  // namespace tandem::train
