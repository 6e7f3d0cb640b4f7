#include "common/train/fp8_scaling.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/graph/passes.h"
#include "kernels/fp8_format.h"

namespace tandem::train {
namespace {

namespace fp8 = kernels::fp8;
using nlohmann::json;

constexpr std::size_t stateSize = fp8::count;
constexpr const char* operandNames[] = {"input", "weight", "gradient"};

constexpr fp8::Format formatOf(std::size_t operand) {
  return operand == fp8::gradientScale ? fp8::Format::e5m2 : fp8::Format::e4m3;
}

}  // namespace

Fp8Scaling::Fp8Scaling(std::vector<std::string> weights, const Device& device)
    : weights_(std::move(weights)), device_(device), histories_(weights_.size() * operands) {
  states_ = std::make_unique<runtime::DeviceMemory>(
      device_.backend, static_cast<std::int64_t>(weights_.size() * stateSize * sizeof(float)));
  sendScales();
}

void Fp8Scaling::bindTo(runtime::Executable& executable) const {
  auto* state = reinterpret_cast<float*>(states_->data());
  for (const std::string& weight : weights_) {
    executable.bind(graph::fp8StateName(weight), state);
    state += stateSize;
  }
}

float Fp8Scaling::scale(std::size_t layer, std::size_t operand) const {
  const std::vector<float>& history = histories_[layer * operands + operand];
  const float largest = history.empty() ? 0.0f : *std::max_element(history.begin(), history.end());
  return largest > 0 ? fp8::scaleFor(formatOf(operand), largest) : 0.0f;
}

void Fp8Scaling::sendScales() {
  std::vector<float> states(weights_.size() * stateSize, 0.0f);
  for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
    for (std::size_t operand = 0; operand < operands; ++operand) {
      states[layer * stateSize + operand] = scale(layer, operand);
    }
  }
  device_.backend.copyToDevice(states_->data(), states.data(), states_->bytes(), device_.stream);
  device_.stream.synchronize();
}

void Fp8Scaling::endStep(bool skipped, comm::Communicator& communicator) {
  std::vector<float> states(weights_.size() * stateSize);
  device_.backend.copyToHost(states.data(), states_->data(), states_->bytes(), device_.stream);
  device_.stream.synchronize();
  std::vector<float> largest;
  for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
    for (std::size_t operand = 0; operand < operands; ++operand) {
      largest.push_back(states[layer * stateSize + fp8::inputLargest + operand]);
    }
  }
  communicator.allReduce({largest.data(), base::DType::f32, static_cast<std::int64_t>(largest.size())},
                         comm::Reduction::maximum);
  for (std::size_t i = 0; i < largest.size() && !skipped; ++i) {
    if (!std::isfinite(largest[i])) continue;
    std::vector<float>& history = histories_[i];
    history.push_back(largest[i]);
    if (history.size() > historySteps) history.erase(history.begin());
  }
  sendScales();
}

std::string Fp8Scaling::save() const {
  json layers = json::object();
  for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
    for (std::size_t operand = 0; operand < operands; ++operand) {
      layers[weights_[layer]][operandNames[operand]] = histories_[layer * operands + operand];
    }
  }
  return base::jsonText(layers);
}

void Fp8Scaling::restore(const std::string& saved) {
  const json layers = base::parseJson(saved);
  for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
    if (!layers.contains(weights_[layer])) continue;
    for (std::size_t operand = 0; operand < operands; ++operand) {
      historyOf(layer, operand) = layers[weights_[layer]][operandNames[operand]].get<std::vector<float>>();
    }
  }
  sendScales();
}

std::string Fp8Scaling::description() const {
  return "linear layers of 8-bit floats: " + std::to_string(weights_.size()) +
         " (e4m3, gradients e5m2; scales by the largest values of " + std::to_string(historySteps) + " steps)" +
         (device_.backend.isHostMemory() ? ", rounded and multiplied as others are: no faster on a CPU" : "");
}

}  // namespace tandem::train
