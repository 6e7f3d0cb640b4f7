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
  if (found->second) found->second->wait();
  underWay_.erase(found);
}

void WeightGathering::progress() {
  for (auto& [bucket, request] : underWay_) {
    if (request && request->test()) request.reset();
  }
}

}  // namespace tandem::runtime
