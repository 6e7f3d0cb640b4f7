#pragma once
// Reduce-scatters and all-gathers as messages between pairs of ranks, cut into segments so that one is added up while
// others are on their way.
//
// The ring (Patarasuk and Yuan 2009): every rank talks to its two neighbours only, and each element crosses each link
// once: for long messages on a link that is the narrow place. Halving and doubling (Thakur, Rabenseifner and Gropp
// 2005): log2 n exchanges with ranks at half the distance each time, for short ones; for a power of two of ranks.
//
// `group` carries the messages under `tag`, which no other exchange under way has. An element's contributions are added
// up in an order that its place and the ranks decide, so the same bits come out of every run. With `bf16OnWire` float32
// sums travel rounded to bfloat16 and are added up in float32: a ring rounds at each of its n - 1 steps, halving at
// each of log2 n.

#include <vector>

#include "common/comm/communicator.h"
#include "common/comm/detail/exchange.h"

namespace tandem::comm::detail {

struct Way {
  Communicator& group;
  int tag = 0;
  bool bf16OnWire = false;
};

// The operands are those of Communicator::startReduceScatter and startAllGather.
Exchange ringReduceScatter(Way way, ConstBuffer given, Buffer received, std::vector<std::int64_t> counts);
Exchange ringAllGather(Way way, ConstBuffer given, Buffer received, std::vector<std::int64_t> counts);
Exchange halvingReduceScatter(Way way, ConstBuffer given, Buffer received, std::vector<std::int64_t> counts);
Exchange doublingAllGather(Way way, ConstBuffer given, Buffer received, std::vector<std::int64_t> counts);

// Elements of a segment.
std::int64_t segmentElements(base::DType type);

}  // namespace tandem::comm::detail
