#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/checkpoint/derived_models.h"
#include "common/checkpoint/encoding.h"

namespace tandem::checkpoint {
namespace {

using base::DType;
using base::Error;
using base::ErrorKind;

class AveragedModel : public ModelSource {
 public:
  AveragedModel(std::vector<std::unique_ptr<ModelSource>> models, std::vector<double> weights)
      : models_(std::move(models)), weights_(std::move(weights)) {
    const ModelSource& first = *models_.front();
    place_ = first.place();
    metadata_ = first.metadata();
    configuration_ = first.configuration();
    parameters_ = first.parameters();
    for (const auto& model : models_) {
      for (const StoredParameter& parameter : parameters_) checkShape(*model, parameter);
    }
  }

 private:
  void checkShape(const ModelSource& model, const StoredParameter& expected) const {
    const base::Shape& shape = model.parameter(expected.name).shape;
    if (shape == expected.shape) return;
    throw Error(ErrorKind::badData, "the parameter " + expected.name + " of " + model.place().string() + " is " +
                                        shape.text() + ", that of " + place_.string() + " " + expected.shape.text() +
                                        ": only models of one shape have a mean");
  }

  void readStored(std::size_t parameter, std::int64_t begin, std::int64_t count, void* target) const override {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::vector<double> sums(values.size());
    for (std::size_t i = 0; i < models_.size(); ++i) {
      const StoredParameter& stored = models_[i]->parameter(parameters_[parameter].name);
      models_[i]->read(stored, begin, count, DType::f32, values.data());
      for (std::size_t k = 0; k < values.size(); ++k) sums[k] += weights_[i] * static_cast<double>(values[k]);
    }
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(sums[k]);
    convert(DType::f32, values.data(), parameters_[parameter].type, target, count);
  }

  std::vector<std::unique_ptr<ModelSource>> models_;
  std::vector<double> weights_;
};

}  // namespace

std::unique_ptr<ModelSource> averageOf(std::vector<std::unique_ptr<ModelSource>> models, std::vector<double> weights) {
  if (weights.empty()) weights.assign(models.size(), 1.0);
  if (weights.size() != models.size()) {
    throw Error(ErrorKind::usage, "there are " + std::to_string(weights.size()) + " weights for " +
                                      std::to_string(models.size()) + " checkpoints");
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!std::isfinite(sum) || sum == 0) throw Error(ErrorKind::usage, "the weights sum to zero, or are no numbers");
  for (double& weight : weights) weight /= sum;
  return std::make_unique<AveragedModel>(std::move(models), std::move(weights));
}

}  // namespace tandem::checkpoint
