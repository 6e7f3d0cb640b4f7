#pragma once
// GGUF (version 3, and 2, which is read alike): magic, version, counts, key-value pairs, tensors' heads, elements. The
// extents of a tensor stand there with the row's first; here they are row-major.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_file.h"

namespace tandem::checkpoint {

// A value of GGUF: whole numbers and floats are held in their widest form, lists by the type of their elements. Lists
// of lists are not read.
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

// Throws Error of kind badData, with the file and the place, for counts that the file has no room for, values of
// unknown types, tensors of unknown types or wrong sizes, and tensors that overlap or leave the file.
class GgufFile : public TensorFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  const std::map<std::string, GgufValue>& values() const { return values_; }

  // Nothing when there is no such key; kind badData when it has another type or does not fit.
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  std::optional<bool> flag(const std::string& key) const;
  const std::vector<std::string>* texts(const std::string& key) const;
  const std::vector<std::int64_t>* integers(const std::string& key) const;

 private:
  const GgufValue* valueAt(const std::string& key) const;

  std::map<std::string, GgufValue> values_;
};

// A key of a new file, in the order of the file. Unsigned and signed numbers are written with 32 bits, as readers of
// the keys that we write expect them, lists of whole numbers too; floats as float32.
using GgufPairs = std::vector<std::pair<std::string, GgufValue>>;

FileLayout layOutGguf(const GgufPairs& pairs, std::span<const NewTensor> tensors);

}  // namespace tandem::checkpoint
