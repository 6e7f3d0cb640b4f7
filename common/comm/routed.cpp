#include "common/comm/routed.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/float16.h"
#include "common/comm/detail/hierarchy.h"
#include "common/comm/detail/routes.h"

namespace tandem::comm {
namespace {

using base::DType;
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

class RoutedCommunicator : public Communicator {
 public:
  RoutedCommunicator(std::unique_ptr<Communicator> owned, Communicator& group, const RouteOptions& options)
      : owned_(std::move(owned)), group_(group), options_(options) {
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
  std::string description() const override { return group_.description() + ", collectives: " + name(options_.route); }

  void barrier() override { group_.barrier(); }
  void broadcast(Buffer buffer, int root) override { group_.broadcast(buffer, root); }
  void allReduce(Buffer buffer, Reduction reduction) override { group_.allReduce(buffer, reduction); }
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
    return group_.startAllReduce(buffer, reduction);
  }
  std::unique_ptr<Request> startReduceScatter(ConstBuffer given, Buffer received,
                                              std::span<const std::int64_t> counts) override {
    detail::checkPieces(*this, given, received, counts);
    // Sums in 16 bits are rounded once, which no way of several steps does.
    const Route route = detail::isFloat16(given.type) ? Route::library : routeOf(detail::bytes(given));
    return startReduceScatter(route, given, received, counts);
  }
  std::unique_ptr<Request> startAllGather(ConstBuffer given, Buffer received,
                                          std::span<const std::int64_t> counts) override {
    detail::checkPieces(*this, received, given, counts);
    return startAllGather(routeOf(detail::bytes(received)), given, received, counts);
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
    return std::make_unique<RoutedCommunicator>(std::move(part), group, options_);
  }
  double secondsWaited() const override { return group_.secondsWaited(); }

  // What is asked for, where the ranks are such that it can be done.
  Route routeOf(std::int64_t bytes) const {
    if (size() == 1) return Route::library;
    const Route route = options_.route == Route::automatic ? fastestFor(bytes) : options_.route;
    if (route == Route::halving && !std::has_single_bit(static_cast<unsigned>(size()))) return Route::library;
    if (route == Route::hierarchical && !hierarchy_) return Route::ring;
    return route;
  }

 private:
  struct Measured {
    std::int64_t bytes = 0;
    Route fastest = Route::library;
  };

  std::unique_ptr<Request> startReduceScatter(Route route, ConstBuffer given, Buffer received,
                                              std::span<const std::int64_t> counts) {
    std::vector<std::int64_t> copy(counts.begin(), counts.end());
    if (route == Route::library) return group_.startReduceScatter(given, received, counts);
    if (route == Route::hierarchical) {
      return share(
          hierarchicalReduceScatter(*hierarchy_, nextTag(), options_.bf16OnWire, given, received, std::move(copy)));
    }
    const Way way{*messages_, nextTag(), options_.bf16OnWire};
    return share(route == Route::ring ? detail::ringReduceScatter(way, given, received, std::move(copy))
                                      : detail::halvingReduceScatter(way, given, received, std::move(copy)));
  }

  std::unique_ptr<Request> startAllGather(Route route, ConstBuffer given, Buffer received,
                                          std::span<const std::int64_t> counts) {
    std::vector<std::int64_t> copy(counts.begin(), counts.end());
    if (route == Route::library) return group_.startAllGather(given, received, counts);
    if (route == Route::hierarchical) {
      return share(detail::hierarchicalAllGather(*hierarchy_, nextTag(), given, received, std::move(copy)));
    }
    const Way way{*messages_, nextTag()};
    return share(route == Route::ring ? detail::ringAllGather(way, given, received, std::move(copy))
                                      : detail::doublingAllGather(way, given, received, std::move(copy)));
  }

  static std::unique_ptr<Request> share(Exchange exchange) { return std::make_unique<Exchange>(std::move(exchange)); }

  // All ranks start exchanges in the same order, so that several can be under way at once.
  int nextTag() { return nextTag_ = (nextTag_ + 1) % 32767; }

  // Times every way at some sizes, the slowest rank's time being the way's.
  void measure() {
    constexpr std::int64_t sizes[] = {std::int64_t{4} << 10, std::int64_t{64} << 10, std::int64_t{1} << 20,
                                      std::int64_t{8} << 20};
    // What is not clearly faster than the library is left to it.
    constexpr double clearly = 0.9;
    std::vector<float> memory(static_cast<std::size_t>(sizes[std::size(sizes) - 1] / 4));
    for (const std::int64_t bytes : sizes) {
      Measured best{bytes};
      double least = seconds(Route::library, memory, bytes / 4) * clearly;
      for (const Route route : {Route::ring, Route::halving, Route::hierarchical}) {
        if (route == Route::halving && !std::has_single_bit(static_cast<unsigned>(size()))) continue;
        if (route == Route::hierarchical && !hierarchy_) continue;
        const double own = seconds(route, memory, bytes / 4);
        if (own >= least) continue;
        least = own;
        best.fastest = route;
      }
      measured_.push_back(best);
    }
  }

  double seconds(Route route, std::vector<float>& memory, std::int64_t count) {
    using Clock = std::chrono::steady_clock;
    std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), count / size());
    counts.back() += count % size();
    const std::int64_t begin = count / size() * rank();
    const Buffer all{memory.data(), DType::f32, count};
    const Buffer own{memory.data() + begin, DType::f32, counts[static_cast<std::size_t>(rank())]};
    double least = INFINITY;
    constexpr int times = 3;  // the first one sets up connections
    for (int time = 0; time < times; ++time) {
      group_.barrier();
      const Clock::time_point start = Clock::now();
      startReduceScatter(route, all, own, counts)->wait();
      startAllGather(route, own, all, counts)->wait();
      least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return allReduceScalar(group_, least, Reduction::maximum);
  }

  // Of the size measured that is nearest, in proportion.
  Route fastestFor(std::int64_t bytes) const {
    const auto distance = [bytes](const Measured& one) {
      return std::abs(std::log(static_cast<double>(std::max<std::int64_t>(bytes, 1)) / static_cast<double>(one.bytes)));
    };
    return std::ranges::min_element(measured_, {}, distance)->fastest;
  }

  std::unique_ptr<Communicator> owned_;  // none when the group is somebody else's
  Communicator& group_;
  RouteOptions options_;
  std::unique_ptr<Communicator> messages_;  // the same ranks; carries what exchanges are made of
  std::optional<detail::Hierarchy> hierarchy_;
  std::vector<Measured> measured_;
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
  return std::make_unique<RoutedCommunicator>(nullptr, group, options);
}

Route routeOf(const Communicator& routed, std::int64_t bytes) {
  const auto* own = dynamic_cast<const RoutedCommunicator*>(&routed);
  TANDEM_ASSERT(own != nullptr, "a group that makeRouted has made");
  return own->routeOf(bytes);
}

}  // namespace tandem::comm
