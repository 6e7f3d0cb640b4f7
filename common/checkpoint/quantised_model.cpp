#include "common/checkpoint/quantised_model.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/checkpoint/step_writer.h"

namespace tandem::checkpoint {
namespace {

constexpr std::int64_t blockElements = 1 << 20;

// What a tensor of the new step is made of.
enum class Content { stored, codes, scales };
struct NewPart {
  const StoredParameter* parameter;
  Content content;
  QuantisedFormat format = QuantisedFormat::int8;
  std::int64_t rowBytes = 0;
  std::int64_t elementBytes = 0;
};

std::int64_t bytesOf(const base::Shape& shape, base::DType type) { return shape.count() * base::byteSize(type); }

// Bytes [begin, begin + target.size()) of the codes or scales of a matrix, quantising the rows that they belong to.
void quantiseRange(const ModelSource& model, const NewPart& part, std::int64_t begin, std::span<std::byte> target) {
  const std::int64_t inputs = part.parameter->shape.last();
  const std::int64_t end = begin + std::ssize(target), mostRows = std::max<std::int64_t>(1, blockElements / inputs);
  std::vector<float> values;
  for (std::int64_t row = begin / part.rowBytes; row * part.rowBytes < end; row += mostRows) {
    const std::int64_t rows = std::min(mostRows, part.parameter->shape[0] - row);
    values.resize(static_cast<std::size_t>(rows * inputs));
    model.read(*part.parameter, row * inputs, rows * inputs, base::DType::f32, values.data());
    const QuantisedRows made = quantiseRows(part.format, values, inputs, {part.parameter->name, row});
    const std::vector<std::byte>& bytes = part.content == Content::codes ? made.codes : made.scales;
    const std::int64_t first = row * part.rowBytes;
    const std::int64_t from = std::max(begin, first), to = std::min(end, first + std::ssize(bytes));
    std::memcpy(target.data() + (from - begin), bytes.data() + (from - first), static_cast<std::size_t>(to - from));
  }
}

}  // namespace

void writeQuantised(comm::Communicator& communicator, const std::filesystem::path& run, const ModelSource& model,
                    QuantisedFormat format, int shards) {
  std::vector<StepTensor> tensors;
  std::vector<NewPart> parts;
  const auto add = [&](const std::string& name, base::DType type, const base::Shape& shape, const NewPart& part) {
    tensors.push_back({name, type, shape});
    parts.push_back(part);
    parts.back().elementBytes = base::byteSize(type);
    parts.back().rowBytes = bytesOf(shape, type) / shape[0];
  };
  for (const StoredParameter& parameter : model.parameters()) {
    const std::string name = "model/" + parameter.name;
    const auto own = formatOfParameter(parameter.name, parameter.shape, format);
    if (!own) {
      add(name, parameter.type, parameter.shape, {&parameter, Content::stored});
      continue;
    }
    const QuantisedDatasets datasets = quantisedDatasets(*own, parameter.shape[0], parameter.shape.last());
    add(codesName(name), datasets.codesType, datasets.codes, {&parameter, Content::codes, *own});
    add(scalesName(name), datasets.scalesType, datasets.scales, {&parameter, Content::scales, *own});
  }
  const auto elements = [&](std::size_t tensor, std::int64_t begin, std::int64_t count, void* target) {
    const NewPart& part = parts[tensor];
    if (part.content == Content::stored) return model.read(*part.parameter, begin, count, part.parameter->type, target);
    quantiseRange(model, part, begin * part.elementBytes,
                  {static_cast<std::byte*>(target), static_cast<std::size_t>(count * part.elementBytes)});
  };
  writeStep(communicator, run, model.metadata(), tensors, elements, shards);
}

QuantisedRows readQuantisedRows(const Reader& reader, const QuantisedEntry& entry, std::int64_t begin,
                                std::int64_t count) {
  const QuantisedDatasets datasets = quantisedDatasets(entry.format, entry.shape[0], entry.shape.last());
  const auto read = [&](const std::string& name, base::DType type, const base::Shape& shape) {
    const std::int64_t elements = shape.count() / entry.shape[0];  // of a row
    std::vector<std::byte> bytes(static_cast<std::size_t>(count * elements * base::byteSize(type)));
    reader.read(name, type, shape, begin * elements, count * elements, bytes.data());
    return bytes;
  };
  return {.codes = read(codesName(entry.name), datasets.codesType, datasets.codes),
          .scales = read(scalesName(entry.name), datasets.scalesType, datasets.scales)};
}

void readQuantised(const Reader& reader, const QuantisedEntry& entry, std::int64_t begin, std::int64_t count,
                   float* target) {
  const std::int64_t inputs = entry.shape.last(), end = begin + count;
  const std::int64_t mostRows = std::max<std::int64_t>(1, blockElements / inputs);
  std::vector<float> values;
  for (std::int64_t row = begin / inputs; row * inputs < end; row += mostRows) {
    const std::int64_t rows = std::min(mostRows, (end + inputs - 1) / inputs - row);
    values.resize(static_cast<std::size_t>(rows * inputs));
    dequantiseRows(entry.format, readQuantisedRows(reader, entry, row, rows), inputs, values, {entry.name, row});
    const std::int64_t first = row * inputs;
    const std::int64_t from = std::max(begin, first), to = std::min(end, first + rows * inputs);
    std::copy(values.begin() + (from - first), values.begin() + (to - first), target + (from - begin));
  }
}

}  // namespace tandem::checkpoint
