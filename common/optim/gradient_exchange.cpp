#include "common/optim/gradient_exchange.h"

#include <algorithm>

namespace tandem::optim {

GradientExchange::GradientExchange(runtime::ParameterStore& parameters, comm::Communicator& replicas,
                                   comm::Communicator* tensor, StageShared stages, When when)
    : parameters_(parameters), replicas_(replicas), when_(when) {
  replicas_.carryGradients();
  if (tensor != nullptr && tensor->size() > 1) findSharedRuns(*tensor);
  for (const std::string& name : stages.parameters) {
    const std::int64_t index = parameters.layout().indexOf(name);
    if (index < 0) continue;
    const sharding::FlatParameter& parameter = parameters.layout().parameters()[static_cast<std::size_t>(index)];
    sharedByStages_.push_back({.flatOffset = parameter.offset,
                               .count = parameter.count,
                               .bucket = parameter.bucket,
                               .holders = stages.holders});
  }
}

// A range is held by one tensor rank, by all, or by some neighbours; the latter are the same for all ranges of a rank.
void GradientExchange::findSharedRuns(comm::Communicator& tensor) {
  int firstHolder = tensor.rank();
  for (const sharding::FlatParameter& parameter : parameters_.layout().parameters()) {
    for (const sharding::Part::Held& held : parameter.part.held()) {
      if (held.holders > 1 && held.holders < tensor.size()) firstHolder = held.firstHolder;
    }
  }
  someHolders_ = tensor.split(firstHolder, tensor.rank());
  for (const sharding::FlatParameter& parameter : parameters_.layout().parameters()) {
    for (const sharding::Part::Held& held : parameter.part.held()) {
      if (held.holders == 1) continue;
      shared_.push_back({.flatOffset = parameter.offset + held.elements.begin,
                         .count = held.elements.count,
                         .bucket = parameter.bucket,
                         .holders = held.holders == tensor.size() ? &tensor : someHolders_.get()});
    }
  }
}

void GradientExchange::addUpOverHolders(std::int32_t bucket, float* gradients) {
  const std::int64_t begin = parameters_.layout().bucketBegin(bucket);
  std::vector<std::unique_ptr<comm::Request>> requests;
  for (const SharedRun& run : shared_) {
    if (run.bucket != bucket) continue;
    requests.push_back(run.holders->startAllReduce({gradients + run.flatOffset - begin, base::DType::f32, run.count}));
  }
  for (const auto& request : requests) request->wait();
}

void GradientExchange::reduceScatter(std::int32_t bucket, void* memory) {
  auto* const gradients = memory != nullptr ? static_cast<float*>(memory)
                                            : parameters_.gradients() + parameters_.layout().bucketBegin(bucket);
  addUpOverHolders(bucket, gradients);
  const bool shared = std::ranges::any_of(sharedByStages_, [&](const SharedRun& run) { return run.bucket == bucket; });
  const bool waits = !parameters_.sharesGradients() && (shared || when_ == When::afterwards);
  if (waits) {
    waiting_.push_back(bucket);
  } else {
    start(bucket, gradients);
  }
}

void GradientExchange::addUpOverStages() {
  const sharding::FlatLayout& layout = parameters_.layout();
  for (const SharedRun& run : sharedByStages_) {
    if (parameters_.sharesGradients()) {
      // It has a bucket of its own, which both stages have cut alike.
      const std::int64_t own = layout.pieceCounts(run.bucket)[static_cast<std::size_t>(replicas_.rank())];
      run.holders->allReduce({parameters_.gradientPiece(run.bucket, replicas_.rank()), base::DType::f32, own});
    } else {
      run.holders->allReduce({parameters_.gradients() + run.flatOffset, base::DType::f32, run.count});
    }
  }
  for (const std::int32_t bucket : waiting_) {
    start(bucket, parameters_.gradients() + layout.bucketBegin(bucket));
  }
  waiting_.clear();
}

void GradientExchange::start(std::int32_t bucket, float* gradients) {
  const sharding::FlatLayout& layout = parameters_.layout();
  if (replicas_.size() == 1 || layout.bucketCount(bucket) == 0) return;
  const comm::Buffer all{gradients, base::DType::f32, layout.bucketCount(bucket)};
  if (layout.ranks() == 1) {  // every replica updates all parameters
    underWay_.push_back(replicas_.startAllReduce(all));
    return;
  }
  const int rank = replicas_.rank();
  float* const own = gradients + layout.pieceBegin(bucket, rank) - layout.bucketBegin(bucket);
  const std::int64_t ownCount = layout.pieceCounts(bucket)[static_cast<std::size_t>(rank)];
  auto request = replicas_.startReduceScatter(all, {own, base::DType::f32, ownCount}, layout.pieceCounts(bucket));
  if (parameters_.sharesGradients()) {
    if (when_ == When::afterwards) timer_.wait(*request);  // its memory is needed
    sums_.push_back({bucket, own, when_ == When::afterwards ? nullptr : std::move(request)});
  } else {
    underWay_.push_back(std::move(request));
  }
}

void GradientExchange::waitForSums(std::int32_t bucket) {
  if (isFirstOfStep_) parameters_.clearGradients();
  isFirstOfStep_ = false;
  const auto found = std::ranges::find(sums_, bucket, &Sums::bucket);
  TANDEM_ASSERT(found != sums_.end(), "sums are waited for that nobody has asked for");
  if (found->request) timer_.wait(*found->request);
  parameters_.addToGradients(bucket, found->piece);
  sums_.erase(found);
}

void GradientExchange::progress() {
  while (firstOpen_ < underWay_.size() && underWay_[firstOpen_]->test()) ++firstOpen_;
  for (Sums& sums : sums_) {
    if (sums.request && !sums.request->test()) return;
    sums.request.reset();
  }
}

void GradientExchange::finish() {
  addUpOverStages();
  for (; firstOpen_ < underWay_.size(); ++firstOpen_) underWay_[firstOpen_]->wait();
  underWay_.clear();
  firstOpen_ = 0;
  isFirstOfStep_ = true;
}

}  // namespace tandem::optim
