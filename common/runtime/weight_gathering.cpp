#include "common/runtime/weight_gathering.h"

#include "common/base/error.h"

namespace tandem::runtime {

void WeightGathering::gather(std::int32_t bucket, void* target) {
  TANDEM_ASSERT(!underWay_.contains(bucket), "a bucket is gathered twice at once");
  const sharding::FlatLayout& layout = parameters_.layout();
  const base::DType type = parameters_.storage();
  const std::span<const std::int64_t> counts = layout.pieceCounts(bucket);
  const int rank = replicas_.rank();
  underWay_[bucket] =
      replicas_.startAllGather({parameters_.weightPiece(bucket, rank), type, counts[static_cast<std::size_t>(rank)]},
                               {target, type, layout.bucketCount(bucket)}, counts);
}

void WeightGathering::wait(std::int32_t bucket) {
  const auto found = underWay_.find(bucket);
  TANDEM_ASSERT(found != underWay_.end(), "weights are waited for that nobody gathers");
  if (found->second) timer_.wait(*found->second);
  underWay_.erase(found);
}

void WeightGathering::progress() {
  for (auto& [bucket, request] : underWay_) {
    if (request && request->test()) request.reset();
  }
}

void WeightArrival::expect(std::int32_t bucket, std::unique_ptr<comm::Request> request) {
  TANDEM_ASSERT(!underWay_.contains(bucket), "a bucket is expected twice at once");
  underWay_[bucket] = std::move(request);
}

void WeightArrival::finish() {
  while (!underWay_.empty()) wait(underWay_.begin()->first);
}

void WeightArrival::gather(std::int32_t, void*) {
  TANDEM_ASSERT(false, "a program gathers weights that all ranks hold");
}

void WeightArrival::wait(std::int32_t bucket) {
  const auto found = underWay_.find(bucket);
  if (found == underWay_.end()) return;  // of an earlier micro batch, or nothing was updated
  if (found->second) timer_.wait(*found->second);
  underWay_.erase(found);
}

void WeightArrival::progress() {
  for (auto& [bucket, request] : underWay_) {
    if (request && request->test()) request.reset();
  }
}

}  // namespace tandem::runtime
