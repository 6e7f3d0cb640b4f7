#include "tests/golden/golden.h"

#include <algorithm>
#include <cstdlib>

namespace tandem::test {

std::string Golden::folder() {
  const char* source = std::getenv("TANDEM_SOURCE_DIR");
  return std::string(source ? source : ".") + "/tests/golden/";
}

Golden::Golden(const std::string& model)
    : file_(hdf5::File::open(folder() + model + ".h5")),
      shape_(file_.dataset("tokens").shape()),
      configuration_(model::parseConfiguration(file_.readText("configuration"), model)) {}

std::vector<double> Golden::values(const std::string& path) const {
  const hdf5::Dataset dataset = file_.dataset(path);
  const auto count = static_cast<std::size_t>(dataset.count());
  std::vector<double> result(count);
  if (dataset.type() == base::DType::f64) {
    dataset.read(0, dataset.count(), result.data());
  } else {
    std::vector<float> narrow(count);
    dataset.read(0, dataset.count(), narrow.data());
    std::copy(narrow.begin(), narrow.end(), result.begin());
  }
  return result;
}

std::vector<std::int32_t> Golden::integers(const std::string& path) const {
  const hdf5::Dataset dataset = file_.dataset(path);
  std::vector<std::int32_t> result(static_cast<std::size_t>(dataset.count()));
  dataset.read(0, dataset.count(), result.data());
  return result;
}

std::vector<float> Golden::parameter(const std::string& name) const {
  const std::vector<double> wide = values("parameters/" + name);
  return {wide.begin(), wide.end()};
}

data::Batch Golden::batch(std::int64_t number, std::int64_t first, std::int64_t count) const {
  data::Batch batch(count, time());
  auto copy = [&](const std::string& path, std::vector<std::int32_t>& target) {
    const std::vector<std::int32_t> all = integers(path);
    const std::int64_t taken = std::clamp<std::int64_t>(rows() - first, 0, count);
    const auto begin = all.begin() + (number * rows() + std::min(first, rows())) * time();
    std::copy(begin, begin + taken * time(), target.begin());
  };
  copy("tokens", batch.tokens);
  copy("targets", batch.targets);
  copy("document_start", batch.documentStart);
  copy("positions", batch.positions);
  batch.targetCount =
      std::count_if(batch.targets.begin(), batch.targets.end(), [](auto t) { return t != data::noTarget; });
  return batch;
}

}  // namespace tandem::test
