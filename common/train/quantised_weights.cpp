#include "common/train/quantised_weights.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/runtime/quantised_store.h"
#include "common/sharding/rank_program.h"
#include "common/train/model_state.h"

namespace tandem::train {
namespace {

using base::DType;
using base::Error;
using base::ErrorKind;
using checkpoint::QuantisedFormat;

struct Matrix {
  std::string name;
  sharding::Part part;  // of [outputs, inputs]
  QuantisedFormat format = QuantisedFormat::int8;
  bool stored = false;  // in the checkpoint, in that format

  std::int64_t outputs() const { return part.shape()[0]; }  // that are held
  std::int64_t inputs() const { return part.shape()[1]; }
};

// What becomes of a parameter; nothing: it stays numbers.
std::optional<Matrix> planned(const checkpoint::ModelSource& model, const graph::Tensor& parameter,
                              const sharding::Part& part, std::optional<QuantisedFormat> format) {
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
  return Matrix{.name = parameter.name, .part = part, .format = *wanted, .stored = stored.has_value()};
}

// Rows [begin, begin + count) of the whole matrix, as a file has them.
checkpoint::QuantisedRows readRows(const checkpoint::ModelSource& model, const Matrix& matrix, std::int64_t begin,
                                   std::int64_t count) {
  const checkpoint::StoredParameter& parameter = model.parameter(matrix.name);
  if (matrix.stored) return model.readQuantisedRows(parameter, begin, count);
  const std::int64_t inputs = matrix.part.whole()[1];
  std::vector<float> values(static_cast<std::size_t>(count * inputs));
  model.read(parameter, begin * inputs, std::ssize(values), DType::f32, values.data());
  return checkpoint::quantiseRows(matrix.format, values, inputs, {matrix.name, begin});
}

void append(std::vector<std::byte>& target, const std::vector<std::byte>& more) {
  target.insert(target.end(), more.begin(), more.end());
}

// Rows [begin, begin + count) of what is held of the matrix. Columns come out of whole rows, whose scales they have.
checkpoint::QuantisedRows readPart(const checkpoint::ModelSource& model, const Matrix& matrix, std::int64_t begin,
                                   std::int64_t count) {
  const sharding::Part& part = matrix.part;
  if (part.axis() == 1) {
    const sharding::Range columns = part.ranges().front().range;
    return checkpoint::cutColumns(matrix.format, readRows(model, matrix, begin, count), part.whole()[1], columns.begin,
                                  columns.count);
  }
  checkpoint::QuantisedRows rows;
  std::int64_t first = 0;  // of the part's rows, in this range
  for (const sharding::HeldRange& held : part.ranges()) {
    const std::int64_t from = std::max(begin, first), to = std::min(begin + count, first + held.range.count);
    if (from < to) {
      const checkpoint::QuantisedRows more = readRows(model, matrix, held.range.begin + from - first, to - from);
      append(rows.codes, more.codes);
      append(rows.scales, more.scales);
    }
    first += held.range.count;
  }
  return rows;
}

void fill(const runtime::QuantisedStore& store, const checkpoint::ModelSource& model, const Matrix& matrix) {
  constexpr std::int64_t panelElements = 1 << 20;
  const std::int64_t panel =
      std::max<std::int64_t>(1, panelElements / matrix.part.whole()[1] / kernels::quantisedBlock) *
      kernels::quantisedBlock;
  for (std::int64_t begin = 0; begin < matrix.outputs(); begin += panel) {
    const std::int64_t count = std::min(panel, matrix.outputs() - begin);
    const checkpoint::QuantisedRows packed = checkpoint::packRows(matrix.format, readPart(model, matrix, begin, count),
                                                                  matrix.inputs(), {matrix.name, begin});
    store.fill(matrix.name, begin, packed.codes, packed.scales);
  }
}

}  // namespace

std::unique_ptr<runtime::ParameterStore> loadForInference(const checkpoint::ModelSource& model,
                                                          const graph::Program& program, DType storage,
                                                          std::optional<QuantisedFormat> format, const Device& device,
                                                          const std::map<std::string, sharding::Part>& parts) {
  auto matrices = std::make_shared<runtime::QuantisedStore>(device.backend, device.stream);
  std::vector<Matrix> quantised;
  std::vector<sharding::FlatLayout::Named> numbers;
  for (const graph::TensorId id : program.ofRole(graph::Role::parameter)) {
    const graph::Tensor& parameter = program.tensor(id);
    const auto found = parts.find(parameter.name);
    const sharding::Part part = found != parts.end() ? found->second : sharding::Part(parameter.shape);
    if (const auto matrix = planned(model, parameter, part, format)) {
      matrices->add(matrix->name, matrix->format, matrix->outputs(), matrix->inputs());
      quantised.push_back(*matrix);
    } else {
      numbers.push_back({parameter.name, parameter.shape, part});
    }
  }
  auto parameters = std::make_unique<runtime::ParameterStore>(
      sharding::FlatLayout(numbers, 1, sharding::FlatLayout::Ownership::anywhere, sharding::usualBucketElements),
      device.backend, device.stream, storage, runtime::ParameterStore::Gradients::none);
  loadWeights(model, *parameters, device);
  if (quantised.empty()) return parameters;
  for (const Matrix& matrix : quantised) fill(*matrices, model, matrix);
  TANDEM_LOG(info) << quantised.size() << " matrices are quantised, in " << matrices->bytes() << " bytes";
  parameters->attach(matrices);
  return parameters;
}

bool holdsQuantised(const checkpoint::ModelSource& model) {
  return std::ranges::any_of(model.parameters(), [&](const checkpoint::StoredParameter& parameter) {
    return model.quantisedFormat(parameter).has_value();
  });
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
      sharding::FlatLayout(numbers, ranks, sharding::FlatLayout::Ownership::anywhere, sharding::usualBucketElements),
      device.backend, device.stream, storage, runtime::ParameterStore::Gradients::none);
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
         {.name = name, .part = sharding::Part(parameter.shape), .format = format, .stored = stored.has_value()});
  }
  TANDEM_LOG(info) << frozen.matrices()->formats().size() << " frozen matrices are quantised, in "
                   << frozen.matrices()->bytes() << " bytes";
}

}  // namespace tandem::train
