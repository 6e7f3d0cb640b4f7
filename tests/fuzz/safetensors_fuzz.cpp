// A safetensors file: its head, and the places of its tensors.

#include "common/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

void tandem::fuzz::fuzzOne(std::string_view bytes) {
  const MemoryFile memory(bytes);
  accepts([&] {
    const checkpoint::SafetensorsFile file(memory.path());
    std::int64_t end = 0;
    for (const checkpoint::StoredTensor& tensor : file.tensors()) {
      demand(tensor.offset >= end && tensor.bytes >= 0, "tensors do not overlap");
      end = tensor.offset + tensor.bytes;
      demand(end <= std::ssize(bytes), "tensors lie in the file");
      std::vector<std::byte> elements(static_cast<std::size_t>(tensor.bytes));
      file.read(tensor.offset, elements);
      demand(file.find(tensor.name) == &tensor, "a tensor is found by its name");
    }
  });
}
