#pragma once
// A group whose sums over ranks, reduce-scatters and all-gathers go the way that suits them: the library's, or one of
// our own (detail/routes.h) by messages between pairs. Everything else the group does itself.
//
// The bits of a sum depend on the way: each adds up in an order of its own, the same in every run. `automatic` measures
// the ways and takes the fastest for each collective and size, so that with three ranks or more a later run may add up
// in another order; two ranks have but one. All-gathers have the same bits on every way.
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

// What has ways to choose from. An all-reduce of our own is a reduce-scatter and an all-gather; the library has two,
// of which the one that is only started is another algorithm.
enum class Collective : std::uint8_t { reduceScatter, allGather, allReduce, startedAllReduce };

// "auto", "library", "ring", "halving" or "hierarchical"; throws Error of kind usage for another text.
Route parseRoute(const std::string& text);
std::string name(Route route);

struct RouteOptions {
  Route route = Route::automatic;
  // Sums of groups that carry gradients (Communicator::carryGradients) travel in bfloat16 on the ways of our own, and
  // are added up in float32. Those of other groups, whose values a forward pass computes with, never do.
  bool bf16OnWire = false;
};

// Of memory of the host. `group` must live as long; groups split from the result are routed too, and what was measured
// between ranks that lie alike on their hosts holds for them as well. Collective.
std::unique_ptr<Communicator> makeRouted(Communicator& group, const RouteOptions& options);

// The way that a collective of so many bytes in all goes in a group that makeRouted has made: sums of float32, and
// what is gathered.
Route routeOf(const Communicator& routed, Collective collective, std::int64_t bytes);

}  // namespace tandem::comm
