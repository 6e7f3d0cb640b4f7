#include "common/runtime/quantised_store.h"

#include "common/base/error.h"

namespace tandem::runtime {

namespace {

std::int64_t bytesOf(const base::Shape& shape, base::DType type) { return shape.count() * base::byteSize(type); }

}  // namespace

void QuantisedStore::add(const std::string& parameter, kernels::QuantisedFormat format, std::int64_t outputs,
                         std::int64_t inputs) {
  formats_[parameter] = format;
  Matrix& matrix = matrices_[parameter];
  matrix.inputs = inputs;
  matrix.codes = std::make_unique<DeviceMemory>(backend_, kernels::codesInMemory(format, outputs, inputs).count());
  matrix.scales = std::make_unique<DeviceMemory>(
      backend_, bytesOf(kernels::scalesInMemory(format, outputs, inputs), kernels::scalesType(format)));
}

void QuantisedStore::fill(const std::string& parameter, std::int64_t firstRow, std::span<const std::byte> codes,
                          std::span<const std::byte> scales) const {
  TANDEM_ASSERT(matrices_.contains(parameter), "'" + parameter + "' is not held here");
  const Matrix& matrix = matrices_.at(parameter);
  const auto copy = [&](const DeviceMemory& target, std::int64_t bytesBefore, std::span<const std::byte> source) {
    TANDEM_ASSERT(bytesBefore + std::ssize(source) <= target.bytes(), "rows beyond the end of '" + parameter + "'");
    backend_.copyToDevice(target.data() + bytesBefore, source.data(), std::ssize(source), stream_);
  };
  copy(*matrix.codes, codesBefore(parameter, firstRow), codes);
  copy(*matrix.scales, scalesBefore(parameter, firstRow), scales);
  stream_.synchronize();
}

std::int64_t QuantisedStore::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [name, matrix] : matrices_) sum += matrix.codes->bytes() + matrix.scales->bytes();
  return sum;
}

std::int64_t QuantisedStore::codesBefore(const std::string& parameter, std::int64_t row) const {
  TANDEM_ASSERT(row % kernels::quantisedBlock == 0, "whole blocks of rows");
  return kernels::codesInMemory(formats_.at(parameter), row, matrices_.at(parameter).inputs).count();
}

std::int64_t QuantisedStore::scalesBefore(const std::string& parameter, std::int64_t row) const {
  const kernels::QuantisedFormat format = formats_.at(parameter);
  return bytesOf(kernels::scalesInMemory(format, row, matrices_.at(parameter).inputs), kernels::scalesType(format));
}

void QuantisedStore::bindRows(Executable& executable, const std::string& parameter, std::int64_t firstRow) const {
  const Matrix& matrix = matrices_.at(parameter);
  executable.bind(graph::codesName(parameter), matrix.codes->data() + codesBefore(parameter, firstRow));
  executable.bind(graph::scalesName(parameter), matrix.scales->data() + scalesBefore(parameter, firstRow));
}

void QuantisedStore::bindTo(Executable& executable) const {
  for (const auto& [name, matrix] : matrices_) {
    if (executable.has(graph::codesName(name))) executable.bind(graph::codesName(name), matrix.codes->data());
    if (executable.has(graph::scalesName(name))) executable.bind(graph::scalesName(name), matrix.scales->data());
  }
}

}  // namespace tandem::runtime
