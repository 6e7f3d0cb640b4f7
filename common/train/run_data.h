#pragma once
// What a run learns from, and what it is evaluated on.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/data/batch_stream.h"
#include "common/model/configuration.h"
#include "common/train/options.h"

namespace tandem::train {

struct RunData {
  std::unique_ptr<data::TrainingData> training;
  std::vector<std::unique_ptr<data::Dataset>> validation;
  std::vector<std::string> validationNames;  // by which their evaluations are recorded

  // Opens the datasets that the options name, and tells how their examples are packed. Throws Error of kind badData
  // where there is nothing to learn.
  static RunData open(const TrainOptions& options);

  // Throws Error of kind badData or usage for data that the model cannot learn: a vocabulary, a tokenizer, a kind or
  // rows that are not the model's. `tokenizerOfBase`: of the model that a finetuning begins with.
  void demandFitting(const model::Configuration& configuration, const TrainOptions& options,
                     const std::string& tokenizerOfBase) const;

  // What must be the same for a resumed run to see the samples that the unbroken one would have seen.
  nlohmann::json identity(const TrainOptions& options) const;
};

// Where the model that is trained was read from.
std::string modelPlace(const TrainOptions& options);

}  // namespace tandem::train
