#include "common/data/batch_stream.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "common/base/error.h"

namespace tandem::data {
namespace {

using base::Error;
using base::ErrorKind;

std::vector<std::unique_ptr<Dataset>> openAll(std::span<const WeightedPath> paths) {
  std::vector<std::unique_ptr<Dataset>> datasets;
  for (const WeightedPath& path : paths) {
    datasets.push_back(std::make_unique<Dataset>(path.path));
    const Dataset& first = *datasets.front();
    if (datasets.back()->description().tokenizerHash != first.description().tokenizerHash) {
      throw Error(ErrorKind::badData, "the datasets '" + first.path().string() + "' and '" + path.path.string() +
                                          "' were made with different tokenizers; encode both with the same one");
    }
  }
  return datasets;
}

std::vector<Rows> rowsOf(const std::vector<std::unique_ptr<Dataset>>& datasets, const BatchOptions& options) {
  if (options.sequenceLength < 1) {
    throw Error(ErrorKind::usage, "a sequence length of " + std::to_string(options.sequenceLength) +
                                      " tokens is no length; give at least 1");
  }
  std::vector<Rows> rows;
  for (const auto& dataset : datasets) rows.emplace_back(*dataset, options.sequenceLength, options.crossDocuments);
  return rows;
}

SampleOrder orderOf(const std::vector<Rows>& rows, std::span<const WeightedPath> paths, std::uint64_t seed) {
  std::vector<std::int64_t> counts;
  for (const Rows& own : rows) counts.push_back(own.trainingCount());
  std::vector<double> weights;
  for (const WeightedPath& path : paths) weights.push_back(path.weight);
  return SampleOrder(seed, std::move(counts), weights);
}

std::int64_t rowCountOf(const Rows& rows, const EvaluationStream::Share& share) {
  const std::int64_t all = rows.evaluationCount();
  return share.maxWindows < 0 ? all : std::min(all, share.maxWindows);
}

}  // namespace

WeightedPath parseWeightedPath(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || text.find('/', colon) != std::string::npos) return {text, 1.0};
  double weight = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data() + colon + 1, end, weight);
  if (failure != std::errc() || stop != end || !(weight > 0) || !std::isfinite(weight) || colon == 0) {
    throw Error(ErrorKind::usage, "'" + text + "' is no dataset with a weight: after the colon stands '" +
                                      text.substr(colon + 1) + "', which is not a positive number");
  }
  return {text.substr(0, colon), weight};
}

TrainingData::TrainingData(std::span<const WeightedPath> paths, const BatchOptions& options)
    : options_(options),
      datasets_(openAll(paths)),
      rows_(rowsOf(datasets_, options)),
      order_(orderOf(rows_, paths, options.seed)) {}

std::int64_t TrainingData::tokenCount() const {
  return std::accumulate(datasets_.begin(), datasets_.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& dataset) { return sum + dataset->tokenCount(); });
}

std::int64_t TrainingData::rowCount() const {
  return std::accumulate(rows_.begin(), rows_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Rows& rows) { return sum + rows.trainingCount(); });
}

Batch TrainingData::batch(std::span<const std::int64_t> samples) const {
  Batch batch(static_cast<std::int64_t>(samples.size()), options_.sequenceLength);
  if (!samples.empty()) batch.firstSample = samples.front();
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const Sample sample = order_(samples[static_cast<std::size_t>(row)]);
    const std::size_t before = batch.documents.size();
    rows(sample.dataset).fill(batch, row, sample.window);
    for (std::size_t i = before; i < batch.documents.size(); ++i) batch.documents[i].dataset = sample.dataset;
  }
  return batch;
}

struct Prefetcher::State {
  Source source;
  std::int64_t count;
  std::size_t depth;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Batch> ready;
  std::exception_ptr failure;
  std::int64_t taken = 0;
  bool stopping = false;
  std::thread worker;

  void work() {
    try {
      for (std::int64_t number = 0; count < 0 || number < count; ++number) {
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return stopping || ready.size() < depth; });
          if (stopping) return;
        }
        Batch batch = source(number);
        const std::lock_guard lock(mutex);
        ready.push_back(std::move(batch));
        changed.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      changed.notify_all();
    }
  }
};

Prefetcher::Prefetcher(Source source, std::int64_t count, std::int64_t depth) : state_(std::make_unique<State>()) {
  TANDEM_ASSERT(depth > 0, "at least one batch is made ahead");
  state_->source = std::move(source);
  state_->count = count;
  state_->depth = static_cast<std::size_t>(depth);
  state_->worker = std::thread([state = state_.get()] { state->work(); });
}

Prefetcher::Prefetcher(Prefetcher&&) noexcept = default;

Prefetcher::~Prefetcher() {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  state_->worker.join();
}

Batch Prefetcher::next() {
  std::unique_lock lock(state_->mutex);
  TANDEM_ASSERT(state_->count < 0 || state_->taken < state_->count, "there are no more batches");
  state_->changed.wait(lock, [&] { return !state_->ready.empty() || state_->failure; });
  if (state_->ready.empty()) std::rethrow_exception(state_->failure);
  Batch batch = std::move(state_->ready.front());
  state_->ready.pop_front();
  ++state_->taken;
  state_->changed.notify_all();
  return batch;
}

BatchStream::BatchStream(const TrainingData& data, const Slice& slice)
    : prefetcher_(
          [&data, slice](std::int64_t number) {
            std::vector<std::int64_t> samples(static_cast<std::size_t>(slice.rows));
            std::iota(samples.begin(), samples.end(),
                      slice.firstSample + number * slice.samplesPerStep + slice.rowBegin);
            return data.batch(samples);
          },
          -1, slice.prefetch) {
  TANDEM_ASSERT(slice.rowBegin >= 0 && slice.rows > 0 && slice.rowBegin + slice.rows <= slice.samplesPerStep,
                "a slice lies within its step");
}

EvaluationStream::EvaluationStream(const Dataset& dataset, std::int64_t sequenceLength, bool crossDocuments,
                                   const Share& share)
    : EvaluationStream(std::make_shared<const Rows>(dataset, sequenceLength, crossDocuments), sequenceLength, share) {}

EvaluationStream::EvaluationStream(std::shared_ptr<const Rows> rows, std::int64_t sequenceLength, const Share& share)
    : batchCount_((rowCountOf(*rows, share) + share.rows * share.ranks - 1) / (share.rows * share.ranks)),
      prefetcher_(
          [rows, sequenceLength, share](std::int64_t number) {
            const std::int64_t count = rowCountOf(*rows, share);
            Batch batch(share.rows, sequenceLength);
            batch.firstSample = (number * share.ranks + share.rank) * share.rows;
            for (std::int64_t row = 0; row < share.rows && batch.firstSample + row < count; ++row) {
              rows->fill(batch, row, batch.firstSample + row);
            }
            return batch;
          },
          batchCount_, share.prefetch) {}

}  // namespace tandem::data
