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

// Elements that are handed over at once, which bounds the host's memory beside the device's.
constexpr std::int64_t blockElements = 1 << 22;

// Gives `count` elements of the device what `fill(begin, values)` writes, block by block.
template <class Element, class Fill>
void fillElements(Element* target, std::int64_t count, const Device& device, Fill&& fill) {
  std::vector<Element> values(static_cast<std::size_t>(std::min(count, blockElements)));
  for (std::int64_t begin = 0; begin < count; begin += blockElements) {
    const std::int64_t length = std::min(blockElements, count - begin);
    fill(begin, std::span(values.data(), static_cast<std::size_t>(length)));
    device.backend.copyToDevice(target + begin, values.data(), length * static_cast<std::int64_t>(sizeof(Element)),
                                device.stream);
    device.stream.synchronize();
  }
}

}  // namespace

checkpoint::CopyToHost copyFrom(const Device& device) {
  if (device.backend.isHostMemory()) return {};
  return [&device](void* target, const void* source, std::int64_t bytes) {
    device.backend.copyToHost(target, source, bytes, device.stream);
    device.stream.synchronize();
  };
}

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
          {.name = stateName(state.name, parameter.name), .type = state.type, .shape = parameter.shape, .pieces = {}});
      for (const OwnedRun& run : optimizer.ownedRuns()) {
        if (run.parameter != static_cast<std::int64_t>(i)) continue;
        tensors.back().pieces.push_back({.begin = run.begin, .count = run.count, .data = state.at(run.shardOffset)});
      }
    }
  }
  return tensors;
}

void restore(const checkpoint::Reader& reader, const runtime::ParameterStore& parameters, optim::Optimizer& optimizer,
             comm::Communicator& communicator, const Device& device) {
  auto read = [&](const std::string& name, DType type, const OwnedRun& run, auto* target) {
    fillElements(target, run.count, device, [&](std::int64_t begin, auto values) {
      reader.read(name, type, parameterOf(parameters, run).shape, run.begin + begin, std::ssize(values), values.data());
    });
  };
  comm::agreeOn(communicator, [&] {
    for (const OwnedRun& run : optimizer.ownedRuns()) {
      const std::string& name = parameterOf(parameters, run).name;
      read(modelName(name), DType::f32, run, optimizer.master(run));
      for (const optim::Optimizer::State& state : optimizer.states()) {
        void* const target = state.at(run.shardOffset);
        if (state.type == DType::bf16) {
          read(stateName(state.name, name), state.type, run, static_cast<base::BFloat16*>(target));
        } else {
          read(stateName(state.name, name), state.type, run, static_cast<float*>(target));
        }
      }
    }
  });
  optimizer.publishMasters();
}

void initialise(const model::Configuration& configuration, std::uint64_t seed,
                const runtime::ParameterStore& parameters, optim::Optimizer& optimizer, const Device& device) {
  for (const OwnedRun& run : optimizer.ownedRuns()) {
    fillElements(optimizer.master(run), run.count, device, [&](std::int64_t begin, std::span<float> values) {
      model::initialise(configuration, parameterOf(parameters, run).name, seed, run.begin + begin, values);
    });
  }
  optimizer.publishMasters();
}

std::int64_t trainedSequenceLength(const checkpoint::ModelSource& model) {
  constexpr std::int64_t mostOfImported = 2048;
  if (model.metadata().progress.empty()) return std::min(model.configuration().maximumPositions, mostOfImported);
  const auto progress = nlohmann::json::parse(model.metadata().progress, nullptr, false);
  const auto length = nlohmann::json::json_pointer("/identity/sequence_length");
  if (progress.is_discarded() || !progress.contains(length) || !progress.at(length).is_number_integer()) {
    throw base::Error(base::ErrorKind::badData, "checkpoint '" + model.place().string() +
                                                    "' does not say on which sequence length it was trained");
  }
  return progress.at(length).get<std::int64_t>();
}

void loadWeights(const checkpoint::ModelSource& model, const runtime::ParameterStore& parameters, const Device& device) {
  const runtime::DeviceMemory block(device.backend, blockElements * base::byteSize(DType::f32));
  auto* const floats = reinterpret_cast<float*>(block.data());
  for (const FlatParameter& parameter : parameters.layout().parameters()) {
    const checkpoint::StoredParameter& stored = model.parameter(parameter.name);
    for (std::int64_t begin = 0; begin < parameter.count; begin += blockElements) {
      const std::int64_t count = std::min(blockElements, parameter.count - begin);
      fillElements(floats, count, device, [&](std::int64_t, std::span<float> values) {
        model.read(stored, begin, count, DType::f32, values.data());
      });
      device.backend.run(kernels::Cast{.input = kernels::ConstTensorView(floats, DType::f32, {count}),
                                       .output = kernels::TensorView(parameters.weightAt(parameter.offset + begin),
                                                                     parameters.storage(), {count})},
                         device.stream);
    }
  }
  device.stream.synchronize();
}

}  // namespace tandem::train
