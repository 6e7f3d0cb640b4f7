#pragma once
// Reads the golden values that make_golden.py stored.

#include <string>
#include <vector>

#include "common/data/batch.h"
#include "common/hdf5/hdf5.h"
#include "common/model/configuration.h"

namespace tandem::test {

class Golden {
 public:
  explicit Golden(const std::string& model);

  const model::Configuration& configuration() const { return configuration_; }
  // Of the golden files, ending with a slash.
  static std::string folder();
  // The whole content of a dataset as double, whatever its type.
  std::vector<double> values(const std::string& path) const;
  std::vector<std::int32_t> integers(const std::string& path) const;
  std::vector<float> parameter(const std::string& name) const;
  bool has(const std::string& path) const { return file_.has(path); }

  std::int64_t batches() const { return shape_[0]; }
  std::int64_t rows() const { return shape_[1]; }
  std::int64_t time() const { return shape_[2]; }
  // Rows [first, first + count) of a batch; rows beyond the batch's end have no targets.
  data::Batch batch(std::int64_t number, std::int64_t first, std::int64_t count) const;

 private:
  hdf5::File file_;
  base::Shape shape_;  // of tokens
  model::Configuration configuration_;
};

}  // namespace tandem::test
