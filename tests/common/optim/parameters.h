#pragma once
// A few parameters on a group of ranks with an optimizer, for tests.

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/optim/gradient_exchange.h"
#include "common/optim/optimizer.h"
#include "common/runtime/parameter_store.h"

namespace tandem::optim {

struct Setting {
  OptimizerOptions options = {};
  std::vector<sharding::FlatLayout::Named> shapes = {{"matrix", {9, 16}}, {"norm", {16}}, {"wide", {5, 37}}};
  std::vector<ParameterTraits> traits = {{}, {.decays = false}, {}};
  sharding::FlatLayout::Ownership ownership = sharding::FlatLayout::Ownership::anywhere;
  base::DType storage = base::DType::f32;
  std::int64_t bucketElements = 150;
};

// Something like a parameter's or a gradient's values, the same everywhere.
inline float madeUp(std::int64_t parameter, std::int64_t element, int round) {
  return std::sin(static_cast<float>(parameter * 31 + element * 7 + round * 13 + 1));
}

class Parameters {
 public:
  Parameters(const Setting& setting, comm::Communicator& communicator)
      : communicator_(communicator),
        backend_(kernels::makeCpuBackend({.threads = 1})),
        stream_(backend_->makeStream()),
        store_(sharding::FlatLayout(setting.shapes, communicator.size(), setting.ownership, setting.bucketElements),
               *backend_, *stream_, setting.storage, runtime::ParameterStore::Gradients::held),
        optimizer_(setting.options, setting.traits, store_, communicator, communicator, *backend_, *stream_),
        exchange_(store_, communicator) {
    for (const sharding::OwnedRun& run : optimizer_.ownedRuns()) {
      for (std::int64_t i = 0; i < run.count; ++i) optimizer_.master(run)[i] = madeUp(run.parameter, run.begin + i, 0);
    }
    optimizer_.publishMasters();
  }

  // Every rank puts in its part of the gradient: a sum over the ranks gives madeUp(..., round) times `scale`.
  void exchangeGradients(int round, float scale = 1) {
    const auto ranks = static_cast<float>(communicator_.size() * (communicator_.size() + 1) / 2);
    const float part = static_cast<float>(communicator_.rank() + 1) / ranks;
    for (std::size_t p = 0; p < layout().parameters().size(); ++p) {
      const sharding::FlatParameter& parameter = layout().parameters()[p];
      for (std::int64_t i = 0; i < parameter.count; ++i) {
        store_.gradients()[parameter.offset + i] = scale * part * madeUp(static_cast<std::int64_t>(p), i, round);
      }
    }
    for (int bucket = layout().buckets() - 1; bucket >= 0; --bucket) {
      exchange_.reduceScatter(bucket, nullptr);
      exchange_.progress();
    }
    exchange_.finish();
  }

  // The weights that this rank computes with, as float32.
  std::vector<float> weights(std::size_t index) const {
    const sharding::FlatParameter& parameter = layout().parameters()[index];
    const void* const from = store_.weightAt(parameter.offset);
    if (store_.storage() == base::DType::f32) {
      return {static_cast<const float*>(from), static_cast<const float*>(from) + parameter.count};
    }
    std::vector<float> values;
    for (std::int64_t i = 0; i < parameter.count; ++i) {
      values.push_back(static_cast<float>(static_cast<const base::BFloat16*>(from)[i]));
    }
    return values;
  }

  const sharding::FlatLayout& layout() const { return store_.layout(); }
  runtime::ParameterStore& store() { return store_; }
  Optimizer& optimizer() { return optimizer_; }

 private:
  comm::Communicator& communicator_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::Stream> stream_;
  runtime::ParameterStore store_;
  Optimizer optimizer_;
  GradientExchange exchange_;
};

}  // namespace tandem::optim
