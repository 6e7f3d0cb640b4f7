#include "common/sharding/grid.h"

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <sstream>

#include "common/base/error.h"

namespace tandem::sharding {
namespace {

using base::Error;
using base::ErrorKind;

struct Axis {
  const char* key;
  const char* meaning;
  int Grid::*count;
};
constexpr Axis axes[] = {{"dp", "data", &Grid::data},
                         {"tp", "tensor", &Grid::tensor},
                         {"pp", "pipeline", &Grid::pipeline},
                         {"cp", "context", &Grid::context}};

// More than any model has layers for; whyNotFitting says how many a model has.
constexpr int mostVirtualStages = 1024;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::usage, "--shard " + message); }

// Of an entry's value; refuses what is no whole number from `least` to `most`.
int parseCount(const std::string& key, const std::string& value, int least, int most) {
  int count = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, count);
  if (error != std::errc() || stop != end || count < least || count > most) {
    refuse(key + "=" + value + ": it must be a whole number from " + std::to_string(least) + " to " +
           std::to_string(most));
  }
  return count;
}

// Takes one "key=value" of the text into the grid; the key.
std::string parseEntry(const std::string& entry, int ranks, Grid& grid) {
  const std::size_t equals = entry.find('=');
  const std::string key = entry.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : entry.substr(equals + 1);
  for (const Axis& axis : axes) {
    if (key != axis.key) continue;
    grid.*axis.count = parseCount(key, value, 1, ranks);
    return key;
  }
  if (key == "zero") {
    grid.zero = parseCount(key, value, 0, 3);
    return key;
  }
  if (key == "vp") {
    grid.virtualStages = parseCount(key, value, 1, mostVirtualStages);
    return key;
  }
  refuse("'" + entry + "': it consists of dp=, tp=, pp=, vp=, cp= and zero=, such as dp=2,tp=2,pp=1,cp=1,zero=1");
}

std::vector<Grid> gridsOf(int ranks) {
  std::vector<Grid> grids;
  for (int data = ranks; data >= 1; --data) {
    for (int tensor = 1; tensor <= ranks / data; ++tensor) {
      for (int pipeline = 1; pipeline <= ranks / (data * tensor); ++pipeline) {
        const int context = ranks / (data * tensor * pipeline);
        const Grid grid{.pipeline = pipeline, .data = data, .context = context, .tensor = tensor};
        if (grid.ranks() == ranks) grids.push_back(grid);
      }
    }
  }
  return grids;
}

// "dp=4; dp=2,tp=2; ..." of the first few; axes of 1 are left out.
std::string listOf(const std::vector<Grid>& grids) {
  constexpr std::size_t most = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(grids.size(), most); ++i) {
    std::string one;
    for (const Axis& axis : axes) {
      if (grids[i].*axis.count == 1) continue;
      one += (one.empty() ? "" : ",") + std::string(axis.key) + "=" + std::to_string(grids[i].*axis.count);
    }
    text += (text.empty() ? "" : "; ") + (one.empty() ? "dp=1" : one);
  }
  return grids.size() > most ? text + "; ..." : text;
}

std::string more(const char* key, int count, std::int64_t limit, const std::string& ofWhat) {
  return std::string(key) + "=" + std::to_string(count) + " is more than the model's " + std::to_string(limit) + " " +
         ofWhat;
}

// "0, 4, 8".
std::string virtualStagesOf(const Grid& grid, int pipelineRank) {
  std::string text;
  for (int stage = pipelineRank; stage < grid.stages(); stage += grid.pipeline) {
    text += (text.empty() ? "" : ", ") + std::to_string(stage);
  }
  return text;
}

}  // namespace

std::string Grid::text() const {
  std::string result;
  for (const Axis& axis : axes) result += std::string(axis.key) + "=" + std::to_string(this->*axis.count) + ",";
  result += "zero=" + std::to_string(zero);
  return virtualStages == 1 ? result : result + ",vp=" + std::to_string(virtualStages);
}

Coordinates coordinatesOf(const Grid& grid, int rank) {
  TANDEM_ASSERT(rank >= 0 && rank < grid.ranks(), "a rank outside of its grid");
  Coordinates own;
  own.tensor = rank % grid.tensor;
  rank /= grid.tensor;
  own.context = rank % grid.context;
  rank /= grid.context;
  own.data = rank % grid.data;
  own.pipeline = rank / grid.data;
  return own;
}

int rankAt(const Grid& grid, const Coordinates& at) {
  return ((at.pipeline * grid.data + at.data) * grid.context + at.context) * grid.tensor + at.tensor;
}

Grid parseGrid(const std::string& text, int ranks) {
  Grid grid;
  std::vector<std::string> seen;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::string key = parseEntry(entry, ranks, grid);
    if (std::ranges::find(seen, key) != seen.end()) refuse(text + ": " + key + " is given twice");
    seen.push_back(key);
  }
  if (seen.empty()) refuse("is empty; it may be dp=2,tp=2,pp=1,cp=1,zero=1");
  const std::int64_t others = std::int64_t{grid.pipeline} * grid.context * grid.tensor;
  const bool leftOut = std::ranges::find(seen, "dp") == seen.end();
  if (leftOut && others <= ranks && ranks % others == 0) grid.data = static_cast<int>(ranks / others);
  if (others * grid.data != ranks) {
    refuse(text + " is a grid of " + std::to_string(others * grid.data) + " ranks, but there are " +
           std::to_string(ranks) + "; these fit: " + listOf(gridsOf(ranks)));
  }
  return grid;
}

std::string whyNotFitting(const Grid& grid, const model::Configuration& c, std::int64_t sequenceLength) {
  if (grid.tensor > c.heads) return more("tp", grid.tensor, c.heads, "heads");
  if (grid.tensor > c.mlpWidth) return more("tp", grid.tensor, c.mlpWidth, "columns of the MLP");
  if (grid.tensor > c.vocabularySize) return more("tp", grid.tensor, c.vocabularySize, "tokens of the vocabulary");
  if (c.learnedPositions && grid.tensor > c.maximumPositions) {
    return more("tp", grid.tensor, c.maximumPositions, "positions");
  }
  if (grid.pipeline > c.layers) return more("pp", grid.pipeline, c.layers, "layers");
  const std::string virtualStages = "vp=" + std::to_string(grid.virtualStages);
  if (grid.virtualStages > 1 && grid.pipeline == 1) {
    return virtualStages + " interleaves the stages of a pipeline, which pp=1 is none; use pp=2 or more, or vp=1";
  }
  if (grid.stages() > c.layers) {
    return virtualStages + " on pp=" + std::to_string(grid.pipeline) + " makes " + std::to_string(grid.stages()) +
           " virtual stages, more than the model's " + std::to_string(c.layers) + " layers; vp can be up to " +
           std::to_string(c.layers / grid.pipeline);
  }
  const std::int64_t chunks = 2 * std::int64_t{grid.context};
  if (grid.context > 1 && sequenceLength > 0 && sequenceLength % chunks != 0) {
    return "cp=" + std::to_string(grid.context) + " cuts a row of " + std::to_string(sequenceLength) + " tokens into " +
           std::to_string(chunks) + " equal pieces, which cannot be; --sequence-length must be a " + "multiple of " +
           std::to_string(chunks);
  }
  return "";
}

std::vector<Grid> fittingGrids(int ranks, const model::Configuration& configuration, std::int64_t sequenceLength) {
  std::vector<Grid> grids = gridsOf(ranks);
  std::erase_if(grids, [&](const Grid& grid) { return !whyNotFitting(grid, configuration, sequenceLength).empty(); });
  return grids;
}

void refuseGrid(const Grid& grid, const std::string& reason, const std::vector<Grid>& fitting) {
  refuse(grid.text() + ": " + reason + "; on " + std::to_string(grid.ranks()) + " ranks these fit: " + listOf(fitting));
}

void demandFitting(const Grid& grid, const model::Configuration& configuration, std::int64_t sequenceLength) {
  const std::string reason = whyNotFitting(grid, configuration, sequenceLength);
  if (!reason.empty()) refuseGrid(grid, reason, fittingGrids(grid.ranks(), configuration, sequenceLength));
}

GridGroups::GridGroups(comm::Communicator& world, const Grid& grid)
    : world_(world), grid_(grid), own_(coordinatesOf(grid, world.rank())) {
  TANDEM_ASSERT(world.size() == grid.ranks(), "a grid of other ranks than there are");
  // The ranks of a group agree in what `others` says, and are ordered by rank, so by the coordinate of their axis.
  const auto group = [&](int size, Coordinates others) -> std::unique_ptr<comm::Communicator> {
    if (size == world_.size()) return nullptr;
    return world_.split(rankAt(grid_, others), world_.rank());
  };
  Coordinates others = own_;
  others.tensor = 0;
  tensor_ = group(grid.tensor, others);
  others = own_;
  others.context = 0;
  context_ = group(grid.context, others);
  others = own_;
  others.pipeline = 0;
  pipeline_ = group(grid.pipeline, others);
  const int directions = grid.pipeline == 1 ? 0 : grid.virtualStages == 1 ? 1 : linkGroups(grid.pipeline);
  for (int index = 0; index < directions; ++index) {
    // The first of them is pipeline() itself.
    links_.push_back(index == 0 ? nullptr : world_.split(rankAt(grid_, others), world_.rank()));
    linksBack_.push_back(world_.split(rankAt(grid_, others), world_.rank()));
  }
  others = own_;
  others.data = others.context = 0;
  replicas_ = group(grid.replicas(), others);
}

int linkGroups(int pipelineRanks) { return pipelineRanks % 2 == 0 ? 2 : 3; }

int linkGroup(int before, int pipelineRanks) {
  const bool closesAnOddRing = pipelineRanks % 2 != 0 && before + 1 == pipelineRanks;
  return closesAnOddRing ? 2 : before % 2;
}

comm::Communicator& GridGroups::link(int before, bool isForward) {
  const std::size_t group = links_.size() > 1 ? static_cast<std::size_t>(linkGroup(before, grid_.pipeline)) : 0;
  const auto& links = isForward ? links_ : linksBack_;
  return links[group] ? *links[group] : pipeline();
}

std::string gridMap(comm::Communicator& world, const Grid& grid) {
  const std::vector<std::string> hosts = comm::allGatherTexts(world, base::identity().host);
  std::size_t width = 4;
  for (const std::string& host : hosts) width = std::max(width, host.size());
  std::ostringstream out;
  out << "rank  " << std::left << std::setw(static_cast<int>(width)) << "host"
      << "  pipeline  data  context  tensor" << (grid.virtualStages > 1 ? "  virtual stages" : "") << "\n";
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const Coordinates at = coordinatesOf(grid, rank);
    out << std::right << std::setw(4) << rank << "  " << std::left << std::setw(static_cast<int>(width))
        << hosts[static_cast<std::size_t>(rank)] << std::right << std::setw(10) << at.pipeline << std::setw(6)
        << at.data << std::setw(9) << at.context << std::setw(8) << at.tensor;
    if (grid.virtualStages > 1) out << "  " << virtualStagesOf(grid, at.pipeline);
    out << "\n";
  }
  return out.str();
}

}  // namespace tandem::sharding
