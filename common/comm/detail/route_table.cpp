#include "common/comm/detail/route_table.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/base/units.h"

namespace tandem::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 4 << 20, 32 << 20};
constexpr int turns = 3;            // the first one sets up connections
constexpr double longestRow = 1.0;  // seconds that the next size may take to measure
constexpr double clearly = 0.9;     // of the library's time

const char* const names[collectives] = {"reduce-scatter", "all-gather", "all-reduce", "all-reduce beside computing"};

// The least seconds of every way, of the slowest rank.
std::array<std::vector<double>, collectives> timeWays(Communicator& group, const std::vector<Route>& ways,
                                                      const CarryOut& carryOut, Buffer memory) {
  std::array<std::vector<double>, collectives> seconds;
  seconds.fill(std::vector<double>(ways.size(), INFINITY));
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t collective = 0; collective < collectives; ++collective) {
      for (std::size_t way = 0; way < ways.size(); ++way) {
        group.barrier();
        const Clock::time_point start = Clock::now();
        carryOut(ways[way], static_cast<Collective>(collective), memory);
        double& least = seconds[collective][way];
        least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
      }
    }
  }
  for (std::vector<double>& each : seconds) {
    group.allReduce({each.data(), base::DType::f64, std::ssize(each)}, Reduction::maximum);
  }
  return seconds;
}

// ways[0] is the library.
Route fastestOf(const std::vector<Route>& ways, const std::vector<double>& seconds) {
  const auto least = std::min_element(seconds.begin() + 1, seconds.end());
  return *least < clearly * seconds[0] ? ways[static_cast<std::size_t>(least - seconds.begin())] : ways[0];
}

}  // namespace

Route RouteTable::fastest(Collective collective, std::int64_t bytes) const {
  const auto distance = [bytes](const Row& row) {
    return std::abs(std::log(static_cast<double>(std::max<std::int64_t>(bytes, 1)) / static_cast<double>(row.bytes)));
  };
  return std::ranges::min_element(rows_, {}, distance)->fastest[static_cast<std::size_t>(collective)];
}

std::string RouteTable::text() const {
  std::string text;
  for (std::size_t collective = 0; collective < collectives; ++collective) {
    text += std::string(collective > 0 ? "; " : "") + names[collective] + ":";
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const Route route = rows_[row].fastest[collective];
      if (row + 1 < rows_.size() && rows_[row + 1].fastest[collective] == route) continue;
      text += " " + name(route) + (row + 1 < rows_.size() ? " to " + base::formatBytes(rows_[row].bytes) + "," : "");
    }
  }
  return text;
}

RouteTable measureRoutes(Communicator& group, const std::vector<Route>& ways, const CarryOut& carryOut) {
  std::vector<RouteTable::Row> rows;
  std::vector<float> memory;
  for (std::size_t size = 0; size < std::size(sizes); ++size) {
    const Clock::time_point start = Clock::now();
    memory.resize(static_cast<std::size_t>(sizes[size] / 4));
    const auto seconds = timeWays(group, ways, carryOut, {memory.data(), base::DType::f32, std::ssize(memory)});
    RouteTable::Row& row = rows.emplace_back(RouteTable::Row{.bytes = sizes[size]});
    std::ranges::transform(seconds, row.fastest.begin(), [&](const auto& each) { return fastestOf(ways, each); });
    if (size + 1 == std::size(sizes)) break;
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    const double growth = static_cast<double>(sizes[size + 1]) / static_cast<double>(sizes[size]);
    if (allReduceScalar(group, took * growth, Reduction::maximum) > longestRow) break;
  }
  return RouteTable(std::move(rows));
}

RouteTable KnownTables::find(Communicator& group, const std::string& kind, const std::function<RouteTable()>& measure) {
  std::string key = kind;
  const std::vector<std::string> hosts = allGatherTexts(group, base::identity().host);
  for (const std::string& host : hosts) {
    key += ' ' + std::to_string(std::ranges::find(hosts, host) - hosts.begin());
  }
  const bool known = allReduceScalar(group, std::int64_t{tables_.contains(key)}, Reduction::minimum) == 1;
  if (!known) return tables_.insert_or_assign(key, measure()).first->second;
  // Ranks may have it from groups that measured apart.
  std::vector<RouteTable::Row> rows = tables_.at(key).rows();
  std::int64_t count = std::ssize(rows);
  group.broadcast({&count, base::DType::i64, 1}, 0);
  rows.resize(static_cast<std::size_t>(count));
  group.broadcast({rows.data(), base::DType::u8, count * static_cast<std::int64_t>(sizeof(RouteTable::Row))}, 0);
  return tables_.insert_or_assign(key, RouteTable(std::move(rows))).first->second;
}

}  // namespace tandem::comm::detail
