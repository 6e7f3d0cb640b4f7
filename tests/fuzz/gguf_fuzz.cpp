// A GGUF file: its head, the configuration and the tokenizer made of it, and its blocks.

#include <algorithm>

#include "common/base/log.h"
#include "common/checkpoint/detail/foreign_model.h"
#include "common/checkpoint/gguf.h"
#include "tests/fuzz/fuzz.h"

namespace tandem::fuzz {
namespace {

void readAll(const checkpoint::GgufFile& file, std::int64_t size) {
  std::int64_t end = 0;
  for (const checkpoint::StoredTensor& tensor : file.tensors()) {
    demand(tensor.offset >= end && tensor.bytes >= 0, "tensors do not overlap");
    end = tensor.offset + tensor.bytes;
    demand(end <= size, "tensors lie in the file");
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.count()));
    checkpoint::detail::readElements(file, tensor, 0, tensor.shape.count(), base::DType::f32,
                                     reinterpret_cast<std::byte*>(values.data()));
  }
}

}  // namespace

void fuzzOne(std::string_view bytes) {
  static const bool quiet = (base::startLogging(base::LogLevel::error), true);
  demand(quiet, "warnings are not printed");
  const MemoryFile memory(bytes);
  accepts([&] { readAll(checkpoint::GgufFile(memory.path()), std::ssize(bytes)); });
  accepts([&] {
    const checkpoint::detail::ForeignModel model(checkpoint::detail::openGguf(memory.path()));
    for (const checkpoint::StoredParameter& parameter : model.parameters()) {
      std::vector<float> values(static_cast<std::size_t>(parameter.shape.count()));
      model.read(parameter, 0, parameter.shape.count(), base::DType::f32, values.data());
    }
  });
}

}  // namespace tandem::fuzz
