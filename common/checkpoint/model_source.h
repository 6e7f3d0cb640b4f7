#pragma once
// A model to read, wherever it comes from: a checkpoint of ours, a Hugging Face folder or a GGUF file. All give
// parameters under our names in our layout (family.h), any range of them, so that whoever converts, compares or
// computes needs to know none of the formats, and holds no more than it asks for.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/quantisation.h"
#include "common/model/configuration.h"

namespace tandem::checkpoint {

struct StoredParameter {
  std::string name;  // as model/transformer.h has it
  base::DType type = base::DType::f32;
  base::Shape shape;
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  ModelSource(const ModelSource&) = delete;
  ModelSource& operator=(const ModelSource&) = delete;

  // The folder of a step, a Hugging Face folder or a file.
  const std::filesystem::path& place() const { return place_; }
  // What is not known of somebody else's model is empty.
  const Metadata& metadata() const { return metadata_; }
  const model::Configuration& configuration() const { return configuration_; }
  // In the order of their use. Of type float32, float16 or bfloat16.
  const std::vector<StoredParameter>& parameters() const { return parameters_; }
  // Kind badData when there is none.
  const StoredParameter& parameter(const std::string& name) const;

  // Elements [begin, begin + count) of the flattened parameter, converted. Not collective; one thread at a time.
  void read(const StoredParameter& parameter, std::int64_t begin, std::int64_t count, base::DType type,
            void* target) const;

  // Where these elements lie in a file, for who copies them as they are stored; nothing: they have to be read.
  virtual std::optional<FilePlace> place(const StoredParameter& parameter, std::int64_t begin,
                                         std::int64_t count) const;

  // The format that a checkpoint of ours holds the matrix in, though it is read as float32; nothing: as numbers.
  virtual std::optional<QuantisedFormat> quantisedFormat(const StoredParameter& parameter) const;
  // Rows [begin, begin + count) of such a matrix, as its file has them.
  virtual QuantisedRows readQuantisedRows(const StoredParameter& parameter, std::int64_t begin,
                                          std::int64_t count) const;

 protected:
  ModelSource() = default;
  // As stored.
  virtual void readStored(std::size_t parameter, std::int64_t begin, std::int64_t count, void* target) const = 0;

  std::filesystem::path place_;
  Metadata metadata_;
  model::Configuration configuration_;
  std::vector<StoredParameter> parameters_;
};

enum class ModelFormat { tandem, huggingFace, gguf };

// By what lies at the path. Kind usage when nothing does.
ModelFormat formatOf(const std::filesystem::path& path);

// Opens any of the three; a checkpoint of ours as Reader does. Throws Error of kind badData, naming file and tensor,
// for an architecture, a tensor or a type that we do not have, a shape that disagrees with the configuration, and
// damage. Collective.
std::unique_ptr<ModelSource> openModel(comm::Communicator& communicator, const std::filesystem::path& path,
                                       Verification verification = Verification::atOnce);

}  // namespace tandem::checkpoint
