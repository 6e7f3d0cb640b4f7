#pragma once
// safetensors: eight bytes with the length of the head, the head (JSON: each tensor's type, shape and place), elements.
//
// Written in the order and spelling of the format's own library: types with wide elements first, then by name; compact
// JSON, padded with spaces to eight bytes. So a file that came from there is written again byte for byte.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/tensor_file.h"

namespace tandem::checkpoint {

// Throws Error of kind badData, with the file and the place, for a head that is too long, is no JSON or does not fit
// the file: a type or shape that disagrees with the tensor's bytes, tensors that overlap, leave gaps or leave the file.
class SafetensorsFile : public TensorFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  // The texts of "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::map<std::string, std::string> metadata_;
};

struct NewTensor {
  std::string name;
  Encoding encoding = Encoding::f32;
  base::Shape shape;
};

// The head of a new file, the eight bytes before it included, and the tensors with their places, in the file's order.
struct FileLayout {
  std::string head;
  std::vector<StoredTensor> tensors;
  std::int64_t bytes = 0;  // of the whole file
};
FileLayout layOutSafetensors(std::span<const NewTensor> tensors, const std::map<std::string, std::string>& metadata);

}  // namespace tandem::checkpoint
