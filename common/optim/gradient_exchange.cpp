#include "common/optim/gradient_exchange.h"

namespace tandem::optim {

GradientExchange::GradientExchange(runtime::ParameterStore& parameters, comm::Communicator& communicator)
    : parameters_(parameters), communicator_(communicator) {}

void GradientExchange::reduceScatter(std::int32_t bucket) {
  if (communicator_.size() == 1) return;
  const sharding::FlatLayout& layout = parameters_.layout();
  float* const begin = parameters_.gradients() + layout.bucketBegin(bucket);
  float* const own = parameters_.gradients() + layout.pieceBegin(bucket, communicator_.rank());
  const std::int64_t ownCount = layout.pieceCounts(bucket)[static_cast<std::size_t>(communicator_.rank())];
  underWay_.push_back(communicator_.startReduceScatter({begin, base::DType::f32, layout.bucketCount(bucket)},
                                                       {own, base::DType::f32, ownCount}, layout.pieceCounts(bucket)));
}

void GradientExchange::progress() {
  while (firstOpen_ < underWay_.size() && underWay_[firstOpen_]->test()) ++firstOpen_;
}

void GradientExchange::finish() {
  for (; firstOpen_ < underWay_.size(); ++firstOpen_) underWay_[firstOpen_]->wait();
  underWay_.clear();
  firstOpen_ = 0;
}

}  // namespace tandem::optim
