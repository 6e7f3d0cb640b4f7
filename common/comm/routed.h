#pragma once
// A group whose reduce-scatters and all-gathers go the way that suits them: the library's direct exchange between all
// ranks, or one of our own (detail/routes.h) by messages between pairs. Everything else the group does itself.
//
// The bits of a sum depend on the way: each adds up in an order of its own, the same in every run. `automatic` measures
// the ways when the group is made and takes the fastest for each size, so that with three ranks or more a later run may
// add up in another order; two ranks have but one. All-gathers have the same bits on every way.
//
// On the ways of our own a rank passes on what others wait for, which it does while it waits itself: all ranks must
// wait for the exchanges that they have under way in the same order.

#include <memory>
#include <string>

#include "common/comm/communicator.h"

namespace tandem::comm {

enum class Route : std::uint8_t {
  automatic,
  library,
  ring,          // long messages, each link once
  halving,       // short ones; a power of two of ranks, else as library
  hierarchical,  // inside the node by the library, then a ring between nodes; as ring where nodes have unlike ranks
};

// "auto", "library", "ring", "halving" or "hierarchical"; throws Error of kind usage for another text.
Route parseRoute(const std::string& text);
std::string name(Route route);

struct RouteOptions {
  Route route = Route::automatic;
  bool bf16OnWire = false;  // float32 sums travel in bfloat16 and are added up in float32, by the ways of our own
};

// Of memory of the host. `group` must live as long; groups split from the result are routed too. Collective.
std::unique_ptr<Communicator> makeRouted(Communicator& group, const RouteOptions& options);

// The way that a reduce-scatter and an all-gather of so many bytes in all go in a group that makeRouted has made.
Route routeOf(const Communicator& routed, std::int64_t bytes);

}  // namespace tandem::comm
