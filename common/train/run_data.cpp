#include "common/train/run_data.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/base/log.h"

namespace tandem::train {
namespace {

using base::Error;
using base::ErrorKind;

// Of a dataset of examples: how they lie in rows, and which were cut or left out.
void tellOfPacking(const data::Dataset& dataset, const data::Rows& rows) {
  if (!rows.arePacked()) return;
  const auto list = [](const std::vector<std::int64_t>& documents) {
    constexpr std::size_t most = 10;
    std::string text;
    for (std::size_t i = 0; i < std::min(most, documents.size()); ++i) {
      text += (i > 0 ? ", " : "") + std::to_string(documents[i]);
    }
    return text + (documents.size() > most ? ", ..." : "");
  };
  const std::string name = "'" + dataset.path().filename().string() + "'";
  TANDEM_LOG(info) << name << ": " << dataset.documentCount() << " examples packed into " << rows.trainingCount()
                   << " rows";
  if (!rows.cutDocuments().empty()) {
    TANDEM_LOG(warning) << name << ": " << rows.cutDocuments().size()
                        << " examples are longer than a row and were cut, by their number from 0: "
                        << list(rows.cutDocuments());
  }
  if (!rows.documentsWithoutTarget().empty()) {
    TANDEM_LOG(warning) << name << ": " << rows.documentsWithoutTarget().size()
                        << " examples have nothing to learn and were left out, by their number from 0: "
                        << list(rows.documentsWithoutTarget());
  }
  if (!rows.pairsAlike().empty()) {
    TANDEM_LOG(warning) << name << ": " << rows.pairsAlike().size()
                        << " pairs have two answers that are the same in their rows and were left out, by their number "
                           "from 0: "
                        << list(rows.pairsAlike());
  }
}

void checkKind(const data::Dataset& dataset, bool wantsPairs) {
  if (dataset.description().pairs == wantsPairs) return;
  throw Error(ErrorKind::usage, "'" + dataset.path().string() +
                                    (wantsPairs ? "' holds no preference pairs, which --objective dpo learns from"
                                                : "' holds preference pairs, which finetune --objective dpo learns "
                                                  "from"));
}

void checkTokenizerOfBase(const std::filesystem::path& base, const std::string& text, const data::Dataset& dataset) {
  if (text.empty() || data::meansTheSame(dataset, text, "the tokenizer of '" + base.string() + "'")) return;
  throw Error(ErrorKind::badData, "'" + dataset.path().string() +
                                      "' was encoded with another tokenizer than the model '" + base.string() +
                                      "' has; encode it with that: tokenize encode --tokenizer " + base.string());
}

}  // namespace

RunData RunData::open(const TrainOptions& options) {
  std::vector<data::WeightedPath> paths;
  for (const std::string& text : options.data) paths.push_back(data::parseWeightedPath(text));
  RunData run;
  run.training =
      std::make_unique<data::TrainingData>(paths, data::BatchOptions{.sequenceLength = options.sequenceLength,
                                                                     .seed = options.seed,
                                                                     .crossDocuments = options.crossDocuments});
  if (run.training->tokenCount() < 2)
    throw Error(ErrorKind::badData, "the training data holds no two tokens: there is nothing to learn");
  for (std::int64_t i = 0; i < run.training->datasetCount(); ++i) {
    tellOfPacking(run.training->dataset(i), run.training->rows(i));
  }
  for (const std::string& path : options.validation) run.validation.push_back(std::make_unique<data::Dataset>(path));
  run.validationNames = data::distinctNames(options.validation);
  return run;
}

void RunData::demandFitting(const model::Configuration& configuration, const TrainOptions& options,
                            const std::string& tokenizerOfBase) const {
  const data::DatasetDescription& first = training->dataset(0).description();
  if (first.vocabularySize > configuration.vocabularySize) {
    throw Error(ErrorKind::badData, "'" + training->dataset(0).path().string() + "' has a vocabulary of " +
                                        std::to_string(first.vocabularySize) + " tokens, the model '" +
                                        modelPlace(options) + "' of " + std::to_string(configuration.vocabularySize) +
                                        "; raise vocab_size or train a smaller tokenizer");
  }
  checkTokenizerOfBase(options.base, tokenizerOfBase, training->dataset(0));
  for (std::int64_t i = 0; i < training->datasetCount(); ++i)
    checkKind(training->dataset(i), options.preference.has_value());
  for (const auto& dataset : validation) checkKind(*dataset, options.preference.has_value());
  for (const auto& dataset : validation) {
    if (dataset->description().tokenizerHash != first.tokenizerHash) {
      throw Error(ErrorKind::badData, "'" + dataset->path().string() + "' was encoded with another tokenizer than '" +
                                          training->dataset(0).path().string() + "'; encode both with one");
    }
  }
  if (options.sequenceLength > configuration.maximumPositions) {
    throw Error(ErrorKind::usage, "--sequence-length " + std::to_string(options.sequenceLength) +
                                      " is longer than the model's " + std::to_string(configuration.maximumPositions) +
                                      " positions (" +
                                      (configuration.learnedPositions ? "n_positions" : "max_position_embeddings") +
                                      " in '" + modelPlace(options) + "')");
  }
}

nlohmann::json RunData::identity(const TrainOptions& options) const {
  nlohmann::json datasets = nlohmann::json::array();
  for (std::int64_t i = 0; i < training->datasetCount(); ++i) {
    const data::Dataset& dataset = training->dataset(i);
    const double weight = data::parseWeightedPath(options.data[static_cast<std::size_t>(i)]).weight;
    datasets.push_back(
        {{"tokens", dataset.tokenCount()}, {"tokenizer", dataset.description().tokenizerHash}, {"weight", weight}});
  }
  return datasets;
}

std::string modelPlace(const TrainOptions& options) {
  return options.base.empty() ? options.model : options.base.string();
}

}  // namespace tandem::train
