#pragma once
// Models whose matrices a checkpoint of ours holds quantised (quantisation.h): written, and read again as floats.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "common/checkpoint/model_source.h"
#include "common/checkpoint/quantisation.h"

namespace tandem::checkpoint {

// Writes a model as a step of its number, its matrices quantised row by row as formatOfParameter says, the rest as it
// is stored. The same bytes at any rank count. Throws Error of kind badData for a model whose weights are no finite
// numbers. Collective.
void writeQuantised(comm::Communicator& communicator, const std::filesystem::path& run, const ModelSource& model,
                    QuantisedFormat format, int shards);

// A quantised matrix of a checkpoint.
struct QuantisedEntry {
  std::string name;  // of the matrix in the checkpoint
  QuantisedFormat format = QuantisedFormat::int8;
  base::Shape shape;
};

// Rows [begin, begin + count), as the file has them.
QuantisedRows readQuantisedRows(const Reader& reader, const QuantisedEntry& entry, std::int64_t begin,
                                std::int64_t count);

// Elements [begin, begin + count) of the flattened matrix, as floats.
void readQuantised(const Reader& reader, const QuantisedEntry& entry, std::int64_t begin, std::int64_t count,
                   float* target);

}  // namespace tandem::checkpoint
