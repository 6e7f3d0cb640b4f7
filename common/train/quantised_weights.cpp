#include "common/train/quantised_weights.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/runtime/quantised_store.h"
#include "common/train/model_state.h"

namespace tandem::train {
namespace {

using base::DType;
using base::Error;
using base::ErrorKind;
using checkpoint::QuantisedFormat;

struct Matrix {
  std::string name;
  std::int64_t outputs = 0, inputs = 0;
  QuantisedFormat format = QuantisedFormat::int8;
  bool stored = false;  // in the checkpoint, in that format
};

// What becomes of a parameter; nothing: it stays numbers.
std::optional<Matrix> planned(const checkpoint::ModelSource& model, const graph::Tensor& parameter,
                              std::optional<QuantisedFormat> format) {
  const auto stored = model.quantisedFormat(model.parameter(parameter.name));
  auto wanted = stored;
  if (format) wanted = checkpoint::formatOfParameter(parameter.name, parameter.shape, *format);
  if (!wanted) return std::nullopt;
  if (stored && *stored != *wanted) {
    throw Error(ErrorKind::usage, "checkpoint '" + model.place().string() + "' holds '" + parameter.name +
                                      "' quantised to " + checkpoint::name(*stored) +
                                      ", which cannot be undone; leave --quantize out, or quantise the model it was "
                                      "made of");
  }
  return Matrix{.name = parameter.name,
                .outputs = parameter.shape[0],
                .inputs = parameter.shape[1],
                .format = *wanted,
                .stored = stored.has_value()};
}

// Rows [begin, begin + count) as a file has them.
checkpoint::QuantisedRows readRows(const checkpoint::ModelSource& model, const Matrix& matrix, std::int64_t begin,
                                   std::int64_t count) {
  const checkpoint::StoredParameter& parameter = model.parameter(matrix.name);
  if (matrix.stored) return model.readQuantisedRows(parameter, begin, count);
  std::vector<float> values(static_cast<std::size_t>(count * matrix.inputs));
  model.read(parameter, begin * matrix.inputs, std::ssize(values), DType::f32, values.data());
  return checkpoint::quantiseRows(matrix.format, values, matrix.inputs, {matrix.name, begin});
}

void fill(const runtime::QuantisedStore& store, const checkpoint::ModelSource& model, const Matrix& matrix) {
  constexpr std::int64_t panelElements = 1 << 20;
  const std::int64_t panel =
      std::max<std::int64_t>(1, panelElements / matrix.inputs / kernels::quantisedBlock) * kernels::quantisedBlock;
  for (std::int64_t begin = 0; begin < matrix.outputs; begin += panel) {
    const std::int64_t count = std::min(panel, matrix.outputs - begin);
    const checkpoint::QuantisedRows packed =
        checkpoint::packRows(matrix.format, readRows(model, matrix, begin, count), matrix.inputs, {matrix.name, begin});
    store.fill(matrix.name, begin, packed.codes, packed.scales);
  }
}

}  // namespace

std::unique_ptr<runtime::ParameterStore> loadForInference(const checkpoint::ModelSource& model,
                                                          const graph::Program& program, DType storage,
                                                          std::optional<QuantisedFormat> format, const Device& device) {
  auto matrices = std::make_shared<runtime::QuantisedStore>(device.backend, device.stream);
  std::vector<Matrix> quantised;
  std::vector<sharding::FlatLayout::Named> numbers;
  for (const graph::TensorId id : program.ofRole(graph::Role::parameter)) {
    const graph::Tensor& parameter = program.tensor(id);
    if (const auto matrix = planned(model, parameter, format)) {
      matrices->add(matrix->name, matrix->format, matrix->outputs, matrix->inputs);
      quantised.push_back(*matrix);
    } else {
      numbers.push_back({parameter.name, parameter.shape});
    }
  }
  auto parameters = std::make_unique<runtime::ParameterStore>(
      runtime::layoutOf(numbers, 1, sharding::FlatLayout::Ownership::anywhere), device.backend, device.stream, storage,
      runtime::ParameterStore::Gradients::none);
  loadWeights(model, *parameters, device);
  if (quantised.empty()) return parameters;
  for (const Matrix& matrix : quantised) fill(*matrices, model, matrix);
  TANDEM_LOG(info) << quantised.size() << " matrices are quantised, in " << matrices->bytes() << " bytes";
  parameters->attach(matrices);
  return parameters;
}

graph::QuantisedParameters frozenFormats(const graph::Program& program, const AdapterOptions& adapters) {
  graph::QuantisedParameters formats;
  if (!adapters.baseFormat) return formats;
  for (const graph::TensorId id : program.ofRole(graph::Role::frozen)) {
    const graph::Tensor& parameter = program.tensor(id);
    const auto format = checkpoint::formatOfFrozen(parameter.name, parameter.shape, *adapters.baseFormat);
    if (format) formats[parameter.name] = *format;
  }
  return formats;
}

std::unique_ptr<runtime::ParameterStore> makeFrozen(const graph::Program& program, const AdapterOptions& adapters,
                                                    DType storage, int ranks, const Device& device) {
  const graph::QuantisedParameters formats = frozenFormats(program, adapters);
  auto matrices = std::make_shared<runtime::QuantisedStore>(device.backend, device.stream);
  std::vector<sharding::FlatLayout::Named> numbers;
  for (const graph::TensorId id : program.ofRole(graph::Role::frozen)) {
    const graph::Tensor& parameter = program.tensor(id);
    if (const auto found = formats.find(parameter.name); found != formats.end()) {
      matrices->add(parameter.name, found->second, parameter.shape[0], parameter.shape[1]);
    } else {
      numbers.push_back({parameter.name, parameter.shape});
    }
  }
  auto frozen = std::make_unique<runtime::ParameterStore>(
      runtime::layoutOf(numbers, ranks, sharding::FlatLayout::Ownership::anywhere), device.backend, device.stream,
      storage, runtime::ParameterStore::Gradients::none);
  if (!formats.empty()) frozen->attach(std::move(matrices));
  return frozen;
}

void loadFrozen(const checkpoint::ModelSource& model, const runtime::ParameterStore& frozen, const Device& device) {
  loadWeights(model, frozen, device);
  if (frozen.matrices() == nullptr) return;
  for (const auto& [name, format] : frozen.matrices()->formats()) {
    const checkpoint::StoredParameter& parameter = model.parameter(name);
    const auto stored = model.quantisedFormat(parameter);
    if (stored && *stored != format) {
      throw Error(ErrorKind::usage, "checkpoint '" + model.place().string() + "' holds '" + name + "' quantised to " +
                                        checkpoint::name(*stored) + ", which cannot be undone; give --quantize " +
                                        checkpoint::name(*stored));
    }
    fill(*frozen.matrices(), model,
         {.name = name,
          .outputs = parameter.shape[0],
          .inputs = parameter.shape[1],
          .format = format,
          .stored = stored.has_value()});
  }
  TANDEM_LOG(info) << frozen.matrices()->formats().size() << " frozen matrices are quantised, in "
                   << frozen.matrices()->bytes() << " bytes";
}

}  // namespace tandem::train
