#pragma once
// Batches in the order of training, or over all of a dataset for evaluation, made ahead by a thread of their own.
//
//   TrainingData data({{"train.h5", 3.0}, {"code.h5", 1.0}}, {.sequenceLength = 1024, .seed = 7});
//   BatchStream stream(data, {.firstSample = progress, .samplesPerStep = 64, .rowBegin = 16 * rank, .rows = 16});
//   Batch batch = stream.next();  // this rank's rows of the step; micro batches are slices of its rows
//
// Step k of a stream takes the global samples firstSample + k * samplesPerStep + [rowBegin, rowBegin + rows), so ranks
// that share a step out between them see, together, the same samples at any rank count, and the state to save is the
// first sample of the next step.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/data/batch.h"
#include "common/data/dataset.h"
#include "common/data/rows.h"
#include "common/data/sample_order.h"

namespace tandem::data {

struct WeightedPath {
  std::filesystem::path path;
  double weight = 1.0;
};

// "train.h5" or "train.h5:0.25". Throws Error of kind usage for a weight that is no positive number.
WeightedPath parseWeightedPath(const std::string& text);

struct BatchOptions {
  std::int64_t sequenceLength = 0;
  std::uint64_t seed = 0;
  bool crossDocuments = false;
};

// The datasets of a training and the order of their samples. Throws Error of kind badData if the datasets have
// different tokenizers, of kind usage for a sequence length below 1 or weights without sense, and what opening throws.
class TrainingData {
 public:
  TrainingData(std::span<const WeightedPath> paths, const BatchOptions& options);

  const BatchOptions& options() const { return options_; }
  std::int64_t datasetCount() const { return static_cast<std::int64_t>(datasets_.size()); }
  const Dataset& dataset(std::int64_t index) const { return *datasets_[static_cast<std::size_t>(index)]; }
  const Rows& rows(std::int64_t dataset) const { return rows_[static_cast<std::size_t>(dataset)]; }
  std::int64_t tokenCount() const;  // of all datasets
  std::int64_t rowCount() const;    // of an epoch of each
  const SampleOrder& order() const { return order_; }

  // The batch whose row i is the sample samples[i].
  Batch batch(std::span<const std::int64_t> samples) const;

 private:
  BatchOptions options_;
  std::vector<std::unique_ptr<Dataset>> datasets_;
  std::vector<Rows> rows_;  // of each dataset
  SampleOrder order_;
};

// Makes batches ahead in a thread, at most `depth` of them. What goes wrong there is thrown by next().
class Prefetcher {
 public:
  // Returns batch number 0, 1, 2...; called in order, by one thread.
  using Source = std::function<Batch(std::int64_t number)>;

  // count < 0: endless.
  Prefetcher(Source source, std::int64_t count, std::int64_t depth);
  ~Prefetcher();
  Prefetcher(Prefetcher&&) noexcept;
  Batch next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class BatchStream {
 public:
  struct Slice {
    std::int64_t firstSample = 0;
    std::int64_t samplesPerStep = 0;
    std::int64_t rowBegin = 0;
    std::int64_t rows = 0;
    std::int64_t prefetch = 2;  // batches made ahead
  };

  // The data must outlive the stream and is used by its thread alone meanwhile.
  BatchStream(const TrainingData& data, const Slice& slice);

  Batch next() { return prefetcher_.next(); }

 private:
  Prefetcher prefetcher_;
};

// Every row of a dataset once, shared out over ranks. All ranks have the same number of batches, so that collectives
// in a forward pass match; rows that are left over are padding, without targets.
class EvaluationStream {
 public:
  struct Share {
    std::int64_t rows = 1;  // of each batch
    std::int64_t rank = 0;
    std::int64_t ranks = 1;
    std::int64_t maxWindows = -1;  // only the first rows of the dataset; < 0: all
    std::int64_t prefetch = 2;
  };

  EvaluationStream(const Dataset& dataset, std::int64_t sequenceLength, bool crossDocuments, const Share& share);

  std::int64_t batchCount() const { return batchCount_; }
  // At most batchCount() times.
  Batch next() { return prefetcher_.next(); }

 private:
  EvaluationStream(std::shared_ptr<const Rows> rows, std::int64_t sequenceLength, const Share& share);

  std::int64_t batchCount_;
  Prefetcher prefetcher_;
};

}  // namespace tandem::data
