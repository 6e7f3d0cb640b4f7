#include "common/train/model_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/model/transformer.h"

namespace tandem::train {
namespace {

using base::DType;
using sharding::FlatParameter;
using sharding::OwnedRun;

const FlatParameter& parameterOf(const runtime::ParameterStore& parameters, const OwnedRun& run) {
  return parameters.layout().parameters()[static_cast<std::size_t>(run.parameter)];
}

std::string modelName(const std::string& parameter) { return "model/" + parameter; }
std::string stateName(const std::string& state, const std::string& parameter) {
  return "optimizer/" + state + "/" + parameter;
}

}  // namespace

std::vector<checkpoint::LocalTensor> localTensors(const runtime::ParameterStore& parameters,
                                                  const optim::Optimizer& optimizer) {
  // Every rank names every tensor, also those of which it owns nothing.
  std::vector<std::vector<checkpoint::Piece>> masters(parameters.layout().parameters().size());
  for (const OwnedRun& run : optimizer.ownedRuns()) {
    masters[static_cast<std::size_t>(run.parameter)].push_back(
        {.begin = run.begin, .count = run.count, .data = optimizer.master(run)});
  }
  std::vector<checkpoint::LocalTensor> tensors;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const FlatParameter& parameter = parameters.layout().parameters()[i];
    tensors.push_back(
        {.name = modelName(parameter.name), .type = DType::f32, .shape = parameter.shape, .pieces = masters[i]});
  }
  for (const optim::Optimizer::State& state : optimizer.states()) {
    for (std::size_t i = 0; i < masters.size(); ++i) {
      const FlatParameter& parameter = parameters.layout().parameters()[i];
      tensors.push_back(
          {.name = stateName(state.name, parameter.name), .type = DType::f32, .shape = parameter.shape, .pieces = {}});
      for (const OwnedRun& run : optimizer.ownedRuns()) {
        if (run.parameter != static_cast<std::int64_t>(i)) continue;
        tensors.back().pieces.push_back(
            {.begin = run.begin, .count = run.count, .data = state.shard + run.shardOffset});
      }
    }
  }
  return tensors;
}

void restore(const checkpoint::Reader& reader, const runtime::ParameterStore& parameters, optim::Optimizer& optimizer,
             comm::Communicator& communicator) {
  comm::agreeOn(communicator, [&] {
    for (const OwnedRun& run : optimizer.ownedRuns()) {
      const FlatParameter& parameter = parameterOf(parameters, run);
      reader.read(modelName(parameter.name), DType::f32, parameter.shape, run.begin, run.count, optimizer.master(run));
      for (const optim::Optimizer::State& state : optimizer.states()) {
        reader.read(stateName(state.name, parameter.name), DType::f32, parameter.shape, run.begin, run.count,
                    state.shard + run.shardOffset);
      }
    }
  });
  optimizer.publishMasters();
}

void initialise(const model::Configuration& configuration, std::uint64_t seed,
                const runtime::ParameterStore& parameters, optim::Optimizer& optimizer) {
  for (const OwnedRun& run : optimizer.ownedRuns()) {
    const std::span<float> target(optimizer.master(run), static_cast<std::size_t>(run.count));
    model::initialise(configuration, parameterOf(parameters, run).name, seed, run.begin, target);
  }
  optimizer.publishMasters();
}

std::int64_t trainedSequenceLength(const checkpoint::Reader& reader) {
  const auto progress = nlohmann::json::parse(reader.metadata().progress, nullptr, false);
  const auto length = nlohmann::json::json_pointer("/identity/sequence_length");
  if (progress.is_discarded() || !progress.contains(length) || !progress.at(length).is_number_integer()) {
    throw base::Error(base::ErrorKind::badData, "checkpoint '" + reader.folder().string() +
                                                    "' does not say on which sequence length it was trained");
  }
  return progress.at(length).get<std::int64_t>();
}

void loadWeights(const checkpoint::Reader& reader, const runtime::ParameterStore& parameters, kernels::Backend& backend,
                 kernels::Stream& stream) {
  constexpr std::int64_t block = 1 << 22;  // elements: bounds the memory beside the weights themselves
  std::vector<float> values;
  for (const FlatParameter& parameter : parameters.layout().parameters()) {
    for (std::int64_t begin = 0; begin < parameter.count; begin += block) {
      const std::int64_t count = std::min(block, parameter.count - begin);
      values.resize(static_cast<std::size_t>(count));
      reader.read(modelName(parameter.name), DType::f32, parameter.shape, begin, count, values.data());
      backend.run(kernels::Cast{.input = kernels::ConstTensorView(values.data(), DType::f32, {count}),
                                .output = kernels::TensorView(parameters.weightAt(parameter.offset + begin),
                                                              parameters.storage(), {count})},
                  stream);
      stream.synchronize();
    }
  }
}

}  // namespace tandem::train
