#include "common/train/model_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
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

// Reads the elements from `begin` on of what is held here of a parameter, by read(first, count, target) of the whole
// one. Columns come with the rows around them, which are read at once and picked from.
template <class Element, class Read>
void readPart(const FlatParameter& parameter, std::int64_t begin, std::span<Element> values, const Read& read) {
  for (const sharding::Strip& strip : parameter.part.strips(begin, std::ssize(values))) {
    Element* target = values.data() + strip.partBegin - begin;
    if (strip.repeats == 1) {
      read(strip.wholeBegin, strip.count, target);
      continue;
    }
    const std::int64_t rowsAtOnce = std::max<std::int64_t>(1, blockElements / strip.stride);
    std::vector<Element> rows;
    for (std::int64_t row = 0; row < strip.repeats; row += rowsAtOnce) {
      const std::int64_t count = std::min(rowsAtOnce, strip.repeats - row);
      rows.resize(static_cast<std::size_t>((count - 1) * strip.stride + strip.count));
      read(strip.wholeBegin + row * strip.stride, std::ssize(rows), rows.data());
      for (std::int64_t i = 0; i < count; ++i, target += strip.count) {
        std::copy_n(rows.data() + i * strip.stride, strip.count, target);
      }
    }
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
  // Every rank names every tensor that it holds some of, also those of which it owns nothing.
  std::vector<checkpoint::LocalTensor> tensors;
  const auto add = [&](std::int64_t index, const std::string& name, DType type, auto&& dataOf) {
    const FlatParameter& parameter = parameters.layout().parameters()[static_cast<std::size_t>(index)];
    tensors.push_back({.name = name, .type = type, .shape = parameter.part.whole(), .pieces = {}});
    for (const OwnedRun& run : optimizer.countedRuns()) {
      if (run.parameter != index) continue;
      const auto* const data = static_cast<const std::byte*>(static_cast<const void*>(dataOf(run)));
      for (const sharding::Strip& strip : parameter.part.strips(run.begin, run.count)) {
        tensors.back().pieces.push_back({.begin = strip.wholeBegin,
                                         .count = strip.count,
                                         .data = data + (strip.partBegin - run.begin) * base::byteSize(type),
                                         .repeats = strip.repeats,
                                         .stride = strip.stride});
      }
    }
  };
  const std::vector<FlatParameter>& all = parameters.layout().parameters();
  for (std::int64_t i = 0; i < std::ssize(all); ++i) {
    add(i, modelName(all[static_cast<std::size_t>(i)].name), DType::f32,
        [&](const OwnedRun& run) { return optimizer.master(run); });
  }
  for (const optim::Optimizer::State& state : optimizer.states()) {
    for (std::int64_t i = 0; i < std::ssize(all); ++i) {
      add(i, stateName(state.name, all[static_cast<std::size_t>(i)].name), state.type,
          [&](const OwnedRun& run) { return state.at(run.shardOffset); });
    }
  }
  return tensors;
}

void restore(const checkpoint::Reader& reader, const runtime::ParameterStore& parameters, optim::Optimizer& optimizer,
             comm::Communicator& communicator, const Device& device) {
  auto read = [&](const std::string& name, DType type, const OwnedRun& run, auto* target) {
    fillElements(target, run.count, device, [&](std::int64_t begin, auto values) {
      const FlatParameter& parameter = parameterOf(parameters, run);
      readPart(parameter, run.begin + begin, values, [&](std::int64_t first, std::int64_t count, void* to) {
        reader.read(name, type, parameter.part.whole(), first, count, to);
      });
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

void beginWith(const checkpoint::ModelSource& model, const runtime::ParameterStore& parameters,
               optim::Optimizer& optimizer, comm::Communicator& communicator, const Device& device) {
  comm::agreeOn(communicator, [&] {
    for (const OwnedRun& run : optimizer.ownedRuns()) {
      const FlatParameter& parameter = parameterOf(parameters, run);
      const checkpoint::StoredParameter& stored = model.parameter(parameter.name);
      fillElements(optimizer.master(run), run.count, device, [&](std::int64_t begin, std::span<float> values) {
        readPart(parameter, run.begin + begin, values, [&](std::int64_t first, std::int64_t count, float* target) {
          model.read(stored, first, count, DType::f32, target);
        });
      });
    }
  });
  optimizer.publishMasters();
}

void initialise(const model::Configuration& configuration, std::uint64_t seed,
                const runtime::ParameterStore& parameters, optim::Optimizer& optimizer, const Device& device) {
  for (const OwnedRun& run : optimizer.ownedRuns()) {
    fillElements(optimizer.master(run), run.count, device, [&](std::int64_t begin, std::span<float> values) {
      const FlatParameter& parameter = parameterOf(parameters, run);
      if (isAdapter(parameter.name)) {
        initialiseAdapter(parameter.name, parameter.shape.last(), seed, run.begin + begin, values);
        return;
      }
      for (const sharding::Strip& strip : parameter.part.strips(run.begin + begin, std::ssize(values))) {
        std::span<float> target = values.subspan(static_cast<std::size_t>(strip.partBegin - run.begin - begin));
        for (std::int64_t i = 0; i < strip.repeats; ++i) {
          const auto count = static_cast<std::size_t>(strip.count);
          model::initialise(configuration, parameter.name, seed, strip.wholeBegin + i * strip.stride,
                            target.subspan(static_cast<std::size_t>(i) * count, count));
        }
      }
    });
  }
  optimizer.publishMasters();
}

std::int64_t trainedSequenceLength(const checkpoint::ModelSource& model) {
  constexpr std::int64_t mostOfImported = 2048;
  if (model.metadata().progress.empty()) return std::min(model.configuration().maximumPositions, mostOfImported);
  const auto progress = base::parseJsonOrDiscard(model.metadata().progress);
  const auto length = nlohmann::json::json_pointer("/identity/sequence_length");
  if (progress.is_discarded() || !progress.contains(length) || !progress.at(length).is_number_integer()) {
    throw base::Error(base::ErrorKind::badData, "checkpoint '" + model.place().string() +
                                                    "' does not say on which sequence length it was trained");
  }
  return progress.at(length).get<std::int64_t>();
}

void loadWeights(const checkpoint::ModelSource& model, const runtime::ParameterStore& parameters,
                 const Device& device) {
  const runtime::DeviceMemory block(device.backend, blockElements * base::byteSize(DType::f32));
  auto* const floats = reinterpret_cast<float*>(block.data());
  for (const FlatParameter& parameter : parameters.layout().parameters()) {
    const checkpoint::StoredParameter& stored = model.parameter(parameter.name);
    for (std::int64_t begin = 0; begin < parameter.count; begin += blockElements) {
      const std::int64_t count = std::min(blockElements, parameter.count - begin);
      fillElements(floats, count, device, [&](std::int64_t, std::span<float> values) {
        readPart(parameter, begin, values, [&](std::int64_t first, std::int64_t elements, float* target) {
          model.read(stored, first, elements, DType::f32, target);
        });
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
