#pragma once
// Matrices of a model that are held quantised, for inference or frozen: codes and scales as the kernels read them.

#include <map>
#include <memory>
#include <span>
#include <string>

#include "common/graph/passes.h"
#include "common/runtime/executable.h"

namespace tandem::runtime {

class QuantisedStore {
 public:
  QuantisedStore(kernels::Backend& backend, kernels::Stream& stream) : backend_(backend), stream_(stream) {}

  // Room for a matrix [outputs, inputs].
  void add(const std::string& parameter, kernels::QuantisedFormat format, std::int64_t outputs, std::int64_t inputs);
  // Codes and scales of whole blocks of rows, packed (kernels/quantised.h), the first being row `firstRow`.
  void fill(const std::string& parameter, std::int64_t firstRow, std::span<const std::byte> codes,
            std::span<const std::byte> scales) const;

  const graph::QuantisedParameters& formats() const { return formats_; }
  std::int64_t bytes() const;

  // Binds every codes and scales tensor that the program names.
  void bindTo(Executable& executable) const;
  // Binds those of one matrix to its blocks of rows from row `firstRow` on.
  void bindRows(Executable& executable, const std::string& parameter, std::int64_t firstRow) const;

 private:
  struct Matrix {
    std::int64_t inputs = 0;
    std::unique_ptr<DeviceMemory> codes, scales;
  };

  // Bytes of codes and of scales in front of a row that begins a block.
  std::int64_t codesBefore(const std::string& parameter, std::int64_t row) const;
  std::int64_t scalesBefore(const std::string& parameter, std::int64_t row) const;

  kernels::Backend& backend_;
  kernels::Stream& stream_;
  graph::QuantisedParameters formats_;
  std::map<std::string, Matrix> matrices_;
};

}  // namespace tandem::runtime
