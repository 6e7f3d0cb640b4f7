#pragma once
// A model in files of somebody else's, read as if it were ours.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/family.h"
#include "common/checkpoint/model_source.h"
#include "common/checkpoint/tensor_file.h"

namespace tandem::checkpoint::detail {

struct ForeignParts {
  std::filesystem::path place;
  Metadata metadata;
  model::Configuration configuration;
  std::vector<Parameter> layout;
  std::vector<std::unique_ptr<TensorFile>> files;
  std::string optionalPrefix;  // that names in the files may lack: "transformer."
};

class ForeignModel : public ModelSource {
 public:
  // Throws Error of kind badData, naming file and tensor: one is missing, unknown, there twice, or of a wrong shape.
  explicit ForeignModel(ForeignParts parts);

 private:
  struct LocatedPart {
    const Part* part;
    const TensorFile* file;
    const StoredTensor* tensor;
  };

  LocatedPart locate(const Part& part) const;
  void refuseUnknown() const;
  void readStored(std::size_t parameter, std::int64_t begin, std::int64_t count, void* target) const override;
  void readPart(const LocatedPart& located, base::DType type, std::int64_t rowElements, std::int64_t begin,
                std::int64_t count, std::byte* target) const;
  void readInterleaved(const LocatedPart& located, base::DType type, std::int64_t rowElements, std::int64_t begin,
                       std::int64_t count, std::byte* target) const;
  const std::byte* transposed(const LocatedPart& located, base::DType type) const;

  ForeignParts parts_;
  std::vector<std::vector<LocatedPart>> located_;  // by parameter
  // The last tensor that was transposed: ranges of one are asked for one after another.
  mutable std::pair<const StoredTensor*, std::vector<std::byte>> transposed_;
};

// Elements of a tensor in their order, as a type of plain floats. Reads no more than whole blocks round them.
void readElements(const TensorFile& file, const StoredTensor& tensor, std::int64_t begin, std::int64_t count,
                  base::DType type, std::byte* target);

// target [columns, rows] from source [rows, columns], whose rows are `stride` elements apart.
void transpose(const std::byte* source, std::int64_t rows, std::int64_t columns, std::int64_t stride,
               std::int64_t elementBytes, std::byte* target);

// Opens what its format's reader makes a ForeignModel of. Not collective.
ForeignParts openHuggingFace(const std::filesystem::path& folder);
ForeignParts openGguf(const std::filesystem::path& file);

// The configuration of somebody else's model: what we do not have is bad data there, not a mistake of the caller.
model::Configuration parseForeignConfiguration(const std::string& json, const std::string& origin);

}  // namespace tandem::checkpoint::detail
