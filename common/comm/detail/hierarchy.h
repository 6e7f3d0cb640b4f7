#pragma once
// Reduce-scatters and all-gathers in two stages: inside each node, whose ranks exchange fast, and between the nodes, of
// which each rank does its part, so that every element crosses the link between two nodes once.

#include <memory>
#include <optional>
#include <vector>

#include "common/comm/communicator.h"
#include "common/comm/detail/exchange.h"

namespace tandem::comm::detail {

// The groups of a hierarchical exchange: the ranks of this rank's node, and those at its place on every node.
struct Hierarchy {
  std::unique_ptr<Communicator> inside, between;
};

// Where nodes have several ranks each, as many on every node, that follow each other; else nothing. Collective.
std::optional<Hierarchy> findHierarchy(Communicator& group);

// As those of routes.h; `hierarchy` must live as long.
Exchange hierarchicalReduceScatter(const Hierarchy& hierarchy, int tag, bool bf16OnWire, ConstBuffer given,
                                   Buffer received, std::vector<std::int64_t> counts);
Exchange hierarchicalAllGather(const Hierarchy& hierarchy, int tag, ConstBuffer given, Buffer received,
                               std::vector<std::int64_t> counts);

}  // namespace tandem::comm::detail
