#include "common/comm/routed.h"

#include <algorithm>
#include <bit>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/float16.h"
#include "common/comm/detail/hierarchy.h"
#include "common/comm/detail/progress.h"
#include "common/comm/detail/route_table.h"
#include "common/comm/detail/routes.h"

namespace tandem::comm {
namespace {

using detail::Exchange;
using detail::Way;

struct NamedRoute {
  Route route;
  const char* name;
};
constexpr NamedRoute routeNames[] = {{Route::automatic, "auto"},
                                     {Route::library, "library"},
                                     {Route::ring, "ring"},
                                     {Route::halving, "halving"},
                                     {Route::hierarchical, "hierarchical"}};

// A buffer as equal pieces, one a rank; the last takes what is left over.
class EvenPieces {
 public:
  EvenPieces(const Buffer& whole, int ranks)
      : whole_(whole), counts_(static_cast<std::size_t>(ranks), whole.count / ranks) {
    counts_.back() += whole.count % ranks;
  }
  const std::vector<std::int64_t>& counts() const { return counts_; }
  Buffer of(int rank) const {
    return {detail::at(whole_.data, counts_.front() * rank, whole_.type), whole_.type,
            counts_[static_cast<std::size_t>(rank)]};
  }

 private:
  Buffer whole_;
  std::vector<std::int64_t> counts_;
};

class RoutedCommunicator : public Communicator {
 public:
  RoutedCommunicator(std::unique_ptr<Communicator> owned, Communicator& group, const RouteOptions& options,
                     std::shared_ptr<detail::KnownTables> known)
      : owned_(std::move(owned)), group_(group), options_(options), known_(std::move(known)) {
    if (group_.size() == 1) return;
    messages_ = group_.split(0, group_.rank());
    if (options_.route == Route::automatic || options_.route == Route::hierarchical) {
      hierarchy_ = detail::findHierarchy(group_);
    }
    if (options_.route == Route::automatic) measure();
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  int ranksOnThisHost() const override { return group_.ranksOnThisHost(); }
  std::string description() const override {
    return group_.description() + ", collectives: " + name(options_.route) +
           (table_ ? " (" + table_->text() + ")" : "");
  }

  void barrier() override { group_.barrier(); }
  void broadcast(Buffer buffer, int root) override { group_.broadcast(buffer, root); }
  void allReduce(Buffer buffer, Reduction reduction) override {
    const Route route = sumRoute(Collective::allReduce, buffer, reduction);
    if (route == Route::library) return group_.allReduce(buffer, reduction);
    startAllReduce(route, buffer, reduction)->wait();
  }
  void reduceScatter(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts) override {
    startReduceScatter(given, received, counts)->wait();
  }
  void allGather(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts) override {
    startAllGather(given, received, counts)->wait();
  }
  void allToAll(ConstBuffer given, std::span<const std::int64_t> givenCounts, Buffer received,
                std::span<const std::int64_t> receivedCounts) override {
    group_.allToAll(given, givenCounts, received, receivedCounts);
  }
  void send(ConstBuffer buffer, int destination, int tag) override { group_.send(buffer, destination, tag); }
  void receive(Buffer buffer, int source, int tag) override { group_.receive(buffer, source, tag); }

  std::unique_ptr<Request> startAllReduce(Buffer buffer, Reduction reduction) override {
    return startAllReduce(sumRoute(Collective::startedAllReduce, buffer, reduction), buffer, reduction);
  }
  std::unique_ptr<Request> startReduceScatter(ConstBuffer given, Buffer received,
                                              std::span<const std::int64_t> counts) override {
    detail::checkPieces(*this, given, received, counts);
    return startReduceScatter(sumRoute(Collective::reduceScatter, given, Reduction::sum), nextTag(), given, received,
                              counts);
  }
  std::unique_ptr<Request> startAllGather(ConstBuffer given, Buffer received,
                                          std::span<const std::int64_t> counts) override {
    detail::checkPieces(*this, received, given, counts);
    return startAllGather(routeOf(Collective::allGather, detail::bytes(received)), nextTag(), given, received, counts);
  }
  std::unique_ptr<Request> startSend(ConstBuffer buffer, int destination, int tag) override {
    return group_.startSend(buffer, destination, tag);
  }
  std::unique_ptr<Request> startReceive(Buffer buffer, int source, int tag) override {
    return group_.startReceive(buffer, source, tag);
  }

  std::unique_ptr<Communicator> split(int colour, int key) override {
    std::unique_ptr<Communicator> part = group_.split(colour, key);
    Communicator& group = *part;
    return std::make_unique<RoutedCommunicator>(std::move(part), group, options_, known_);
  }
  void carryGradients() override {
    if (!options_.bf16OnWire || rounds_) return;
    rounds_ = true;
    if (size() > 1 && options_.route == Route::automatic) measure();  // half the bytes: another way may be the fastest
  }
  double secondsWaited() const override { return group_.secondsWaited(); }

  // What is asked for, where the ranks are such that it can be done.
  Route routeOf(Collective collective, std::int64_t bytes) const {
    if (size() == 1) return Route::library;
    const Route route = table_ ? table_->fastest(collective, bytes) : options_.route;
    if (route == Route::halving && !hasPowerOfTwo()) return Route::library;
    if (route == Route::hierarchical && !hierarchy_) return Route::ring;
    return route;
  }

 private:
  bool hasPowerOfTwo() const { return std::has_single_bit(static_cast<unsigned>(size())); }

  // Sums in 16 bits are rounded once, which no way of several steps does; and ours know no other reduction.
  Route sumRoute(Collective collective, const ConstBuffer& buffer, Reduction reduction) const {
    if (detail::isFloat16(buffer.type) || reduction != Reduction::sum) return Route::library;
    return routeOf(collective, detail::bytes(buffer));
  }

  std::unique_ptr<Request> startAllReduce(Route route, Buffer buffer, Reduction reduction) {
    if (route == Route::library) return group_.startAllReduce(buffer, reduction);
    const int sumTag = nextTag(), gatherTag = nextTag();
    return share(allReduceInParts(route, sumTag, gatherTag, buffer));
  }

  std::unique_ptr<Request> startReduceScatter(Route route, int tag, ConstBuffer given, Buffer received,
                                              std::span<const std::int64_t> counts) {
    std::vector<std::int64_t> copy(counts.begin(), counts.end());
    if (route == Route::library) return group_.startReduceScatter(given, received, counts);
    if (route == Route::hierarchical) {
      return share(hierarchicalReduceScatter(*hierarchy_, tag, rounds_, given, received, std::move(copy)));
    }
    const Way way{*messages_, tag, rounds_};
    return share(route == Route::ring ? detail::ringReduceScatter(way, given, received, std::move(copy))
                                      : detail::halvingReduceScatter(way, given, received, std::move(copy)));
  }

  std::unique_ptr<Request> startAllGather(Route route, int tag, ConstBuffer given, Buffer received,
                                          std::span<const std::int64_t> counts) {
    std::vector<std::int64_t> copy(counts.begin(), counts.end());
    if (route == Route::library) return group_.startAllGather(given, received, counts);
    if (route == Route::hierarchical) {
      return share(detail::hierarchicalAllGather(*hierarchy_, tag, given, received, std::move(copy)));
    }
    const Way way{*messages_, tag};
    return share(route == Route::ring ? detail::ringAllGather(way, given, received, std::move(copy))
                                      : detail::doublingAllGather(way, given, received, std::move(copy)));
  }

  // Both tags are taken when it starts, as ranks come to the gathering in another order.
  Exchange allReduceInParts(Route route, int sumTag, int gatherTag, Buffer buffer) {
    const EvenPieces pieces(buffer, size());
    const Buffer own = pieces.of(rank());
    const std::unique_ptr<Request> sums = startReduceScatter(route, sumTag, buffer, own, pieces.counts());
    co_await *sums;
    const std::unique_ptr<Request> all = startAllGather(route, gatherTag, own, buffer, pieces.counts());
    co_await *all;
  }

  static std::unique_ptr<Request> share(Exchange exchange) {
    return std::make_unique<detail::Attended>(std::make_unique<Exchange>(std::move(exchange)));
  }

  // All ranks start exchanges in the same order, so that several can be under way at once.
  int nextTag() { return nextTag_ = (nextTag_ + 1) % 32767; }

  void measure() {
    std::vector<Route> ways = {Route::library, Route::ring};
    if (hasPowerOfTwo() && size() > 2) ways.push_back(Route::halving);  // of two ranks it is the ring
    if (hierarchy_) ways.push_back(Route::hierarchical);
    table_ = known_->find(group_, rounds_ ? "rounded" : "exact", [&] {
      return detail::measureRoutes(group_, ways, [this](Route route, Collective collective, Buffer memory) {
        carryOut(route, collective, memory);
      });
    });
  }

  void carryOut(Route route, Collective collective, Buffer memory) {
    const EvenPieces pieces(memory, size());
    const Buffer own = pieces.of(rank());
    switch (collective) {
      case Collective::reduceScatter:
        return startReduceScatter(route, nextTag(), memory, own, pieces.counts())->wait();
      case Collective::allGather:
        return startAllGather(route, nextTag(), own, memory, pieces.counts())->wait();
      case Collective::allReduce:
        if (route == Route::library) return group_.allReduce(memory, Reduction::sum);
        [[fallthrough]];
      case Collective::startedAllReduce:
        return startAllReduce(route, memory, Reduction::sum)->wait();
    }
  }

  std::unique_ptr<Communicator> owned_;  // none when the group is somebody else's
  Communicator& group_;
  RouteOptions options_;
  bool rounds_ = false;                     // sums of float32 on the wire
  std::unique_ptr<Communicator> messages_;  // the same ranks; carries what exchanges are made of
  std::optional<detail::Hierarchy> hierarchy_;
  std::shared_ptr<detail::KnownTables> known_;
  std::optional<detail::RouteTable> table_;  // where the ways were measured
  int nextTag_ = 0;
};

}  // namespace

Route parseRoute(const std::string& text) {
  for (const NamedRoute& each : routeNames) {
    if (text == each.name) return each.route;
  }
  throw base::Error(base::ErrorKind::usage,
                    "--collectives is '" + text + "'; it can be auto, library, ring, halving or hierarchical");
}

std::string name(Route route) { return std::ranges::find(routeNames, route, &NamedRoute::route)->name; }

std::unique_ptr<Communicator> makeRouted(Communicator& group, const RouteOptions& options) {
  return std::make_unique<RoutedCommunicator>(nullptr, group, options, std::make_shared<detail::KnownTables>());
}

Route routeOf(const Communicator& routed, Collective collective, std::int64_t bytes) {
  const auto* own = dynamic_cast<const RoutedCommunicator*>(&routed);
  TANDEM_ASSERT(own != nullptr, "a group that makeRouted has made");
  return own->routeOf(collective, bytes);
}

}  // namespace tandem::comm
