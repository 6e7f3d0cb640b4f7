#pragma once
// Where a model computes.

#include <memory>

#include "common/comm/communicator.h"
#include "common/runtime/executable.h"
#include "kernels/backend.h"

namespace tandem::train {

struct Device {
  kernels::Backend& backend;
  kernels::Stream& stream;
  std::shared_ptr<runtime::Arena> arena;
  // The ranks, for memory of the device; null where the host's own group can exchange it.
  comm::Communicator* exchange = nullptr;

  comm::Communicator& exchangeOr(comm::Communicator& ranks) const { return exchange != nullptr ? *exchange : ranks; }
};

}  // namespace tandem::train
