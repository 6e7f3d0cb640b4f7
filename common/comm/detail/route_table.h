#pragma once
// Which way is the fastest between the ranks of a group, by collective and size, as measured.

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/comm/routed.h"

namespace tandem::comm::detail {

constexpr std::size_t collectives = 4;

class RouteTable {
 public:
  struct Row {
    std::int64_t bytes = 0;
    std::array<Route, collectives> fastest{};  // by Collective
  };
  // Rows by growing size, one at least.
  explicit RouteTable(std::vector<Row> rows) : rows_(std::move(rows)) {}

  // Of the size measured that is nearest, in proportion.
  Route fastest(Collective collective, std::int64_t bytes) const;
  const std::vector<Row>& rows() const { return rows_; }
  // "reduce-scatter: library to 64.0 KiB, ring to 4.0 MiB; ..."
  std::string text() const;

 private:
  std::vector<Row> rows_;
};

// Carries out a collective of the elements in memory on one way, to its end.
using CarryOut = std::function<void(Route, Collective, Buffer memory)>;

// Times the ways in turns at growing sizes, for a second or two; the slowest rank's time is the way's, so that all
// ranks get the same table. A way has to be clearly faster than the library to be taken. Collective.
RouteTable measureRoutes(Communicator& group, const std::vector<Route>& ways, const CarryOut& carryOut);

// Tables by where the ranks of a group lie, so that one probe serves all groups that lie alike.
class KnownTables {
 public:
  // The group's table, measured where one of its ranks has none yet; the same on all of its ranks. `kind` tells apart
  // what is to be measured for itself. Collective.
  RouteTable find(Communicator& group, const std::string& kind, const std::function<RouteTable()>& measure);

 private:
  std::map<std::string, RouteTable> tables_;
};

}  // namespace tandem::comm::detail
