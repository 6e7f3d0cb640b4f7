#include "common/runtime/decoding_ranks.h"

#include <algorithm>
#include <vector>

#include "common/base/error.h"

namespace tandem::runtime {

DecodingRanks::DecodingRanks(sharding::GridGroups& host, sharding::GridGroups& device)
    : host_(host), device_(device), copy_(host.world().split(host.own().data, host.world().rank())) {
  TANDEM_ASSERT(grid().context == 1, "positions are not shared out where tokens are made one after another");
}

void DecodingRanks::share(int root, std::span<std::int32_t> values, const std::function<void()>& work) {
  std::optional<base::Error> error;
  if (copy_->rank() == root) {
    try {
      work();
    } catch (...) {
      error = comm::asError(std::current_exception());
    }
  }
  std::vector<std::int32_t> message(values.begin(), values.end());
  message.push_back(error ? 1 : 0);
  copy_->broadcast({message.data(), base::DType::i32, std::ssize(message)}, root);
  if (message.back() != 0) comm::agree(*copy_, error);
  std::copy(message.begin(), message.end() - 1, values.begin());
}

}  // namespace tandem::runtime
