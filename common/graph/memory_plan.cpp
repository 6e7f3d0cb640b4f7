// Where each activation lies: offline placement of buffers with known lives. The problem is NP-hard; placing them one
// after the other at the lowest free offset, in a few sensible orders, comes close to the lower bound (the most that is
// alive at once), since a training step is nearly a stack.

#include <algorithm>
#include <functional>
#include <numeric>

#include "common/base/random.h"
#include "common/graph/detail/lifetimes.h"
#include "common/graph/passes.h"

namespace tandem::graph {
namespace {

using detail::Buffer;

struct Placed {
  std::int64_t begin, end;
  std::size_t first, last;
};

struct Placement {
  std::vector<std::int64_t> offsets;  // by buffer
  std::int64_t arena = 0;
};

enum class Fit { lowest, tightest };

// The offset for a buffer among those placed already, which are sorted by offset.
std::int64_t offsetFor(const Buffer& buffer, const std::vector<Placed>& placed, Fit fit) {
  std::int64_t end = 0, best = -1, bestGap = 0;
  for (const Placed& other : placed) {
    if (other.last < buffer.first || buffer.last < other.first) continue;
    const std::int64_t gap = other.begin - end;
    if (gap >= buffer.bytes && (best < 0 || gap < bestGap)) {
      if (fit == Fit::lowest) return end;
      best = end;
      bestGap = gap;
    }
    end = std::max(end, other.end);
  }
  return best >= 0 ? best : end;
}

Placement place(const std::vector<Buffer>& buffers, const std::vector<std::size_t>& order, Fit fit) {
  Placement result;
  result.offsets.assign(buffers.size(), 0);
  std::vector<Placed> placed;
  placed.reserve(buffers.size());
  for (const std::size_t index : order) {
    const Buffer& buffer = buffers[index];
    const std::int64_t offset = offsetFor(buffer, placed, fit);
    const Placed entry{offset, offset + buffer.bytes, buffer.first, buffer.last};
    placed.insert(std::ranges::upper_bound(placed, offset, {}, &Placed::begin), entry);
    result.offsets[index] = offset;
    result.arena = std::max(result.arena, entry.end);
  }
  return result;
}

struct Candidate {
  std::vector<std::size_t> order;
  Fit fit = Fit::lowest;
  Placement placement;
};

// Longest lives first suits the stack of kept activations; largest first suits what is left between.
Candidate bestOfSortedOrders(const std::vector<Buffer>& buffers, std::int64_t peak) {
  using Key = std::function<double(const Buffer&)>;
  const auto life = [](const Buffer& buffer) { return static_cast<double>(buffer.last - buffer.first + 1); };
  const auto size = [](const Buffer& buffer) { return static_cast<double>(buffer.bytes); };
  const Key keys[] = {size, life, [&](const Buffer& buffer) { return size(buffer) * life(buffer); },
                      [](const Buffer& buffer) { return -static_cast<double>(buffer.first); },
                      [](const Buffer& buffer) { return static_cast<double>(buffer.last); }};
  Candidate best;
  for (const Key& key : keys) {
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(
        order, [&](std::size_t left, std::size_t right) { return key(buffers[left]) > key(buffers[right]); });
    for (const Fit fit : {Fit::lowest, Fit::tightest}) {
      Placement placement = place(buffers, order, fit);
      if (best.order.empty() || placement.arena < best.placement.arena) best = {order, fit, std::move(placement)};
      if (best.placement.arena == peak) return best;
    }
  }
  return best;
}

// A buffer that ends where the arena ends.
std::size_t topmost(const std::vector<Buffer>& buffers, const Candidate& candidate) {
  for (std::size_t place = 0;; ++place) {
    const std::size_t index = candidate.order[place];
    if (candidate.placement.offsets[index] + buffers[index].bytes == candidate.placement.arena) return place;
  }
}

// Places the buffer that makes the arena as large as it is a random while earlier, again and again. Worth it for small
// programs, where one tensor out of place is some percent of the whole; the effort is bounded for all.
void improve(const std::vector<Buffer>& buffers, std::int64_t peak, Candidate& best) {
  constexpr std::size_t comparisons = 20'000'000;
  const std::size_t tries = std::min<std::size_t>(comparisons / (buffers.size() * buffers.size() / 2 + 1), 3000);
  base::RandomStream random(0, 0);  // every rank has to come to the same plan
  for (std::size_t attempt = 0; attempt < tries && best.placement.arena > peak; ++attempt) {
    const std::size_t from = topmost(buffers, best);
    if (from == 0) return;
    Candidate moved = best;
    const auto to = static_cast<std::ptrdiff_t>(random.nextBelow(from));
    std::rotate(moved.order.begin() + to, moved.order.begin() + static_cast<std::ptrdiff_t>(from),
                moved.order.begin() + static_cast<std::ptrdiff_t>(from) + 1);
    moved.placement = place(buffers, moved.order, moved.fit);
    if (moved.placement.arena <= best.placement.arena) best = std::move(moved);
  }
}

Placement bestPlacement(const std::vector<Buffer>& buffers, std::int64_t peak) {
  Candidate best = bestOfSortedOrders(buffers, peak);
  if (!buffers.empty()) improve(buffers, peak, best);
  return best.placement;
}

}  // namespace

std::vector<LiveBytes> liveBytes(const Program& program) {
  std::vector<bool> hasParts(program.tensors().size(), false);
  for (const Tensor& tensor : program.tensors()) {
    if (tensor.partOf != none) hasParts[static_cast<std::size_t>(tensor.partOf)] = true;
  }
  std::vector<LiveBytes> live(program.nodes().size() + 1);
  for (const Buffer& buffer : detail::buffersOf(program)) {
    const bool isBucket = hasParts[static_cast<std::size_t>(buffer.tensors.front())];
    std::int64_t LiveBytes::*const kind = isBucket ? &LiveBytes::buckets : &LiveBytes::activations;
    live[buffer.first].*kind += buffer.bytes;
    live[buffer.last + 1].*kind -= buffer.bytes;
  }
  for (std::size_t index = 1; index < live.size(); ++index) {
    live[index].buckets += live[index - 1].buckets;
    live[index].activations += live[index - 1].activations;
  }
  live.pop_back();
  return live;
}

MemoryPlan planMemory(const Program& program) {
  const std::vector<Buffer> buffers = detail::buffersOf(program);
  MemoryPlan plan;
  plan.offsets.assign(program.tensors().size(), -1);
  for (const LiveBytes& live : liveBytes(program)) {
    plan.peakLiveBytes = std::max(plan.peakLiveBytes, live.buckets + live.activations);
  }
  const Placement placement = bestPlacement(buffers, plan.peakLiveBytes);
  plan.arenaBytes = placement.arena;
  for (std::size_t index = 0; index < buffers.size(); ++index) {
    for (const TensorId id : buffers[index].tensors) {
      plan.offsets[static_cast<std::size_t>(id)] = placement.offsets[index];
    }
  }
  for (std::size_t id = 0; id < plan.offsets.size(); ++id) {
    const Tensor& part = program.tensors()[id];
    if (part.partOf == none || plan.offsets[static_cast<std::size_t>(part.partOf)] < 0) continue;
    plan.offsets[id] = plan.offsets[static_cast<std::size_t>(part.partOf)] + part.partBegin * base::byteSize(part.type);
  }
  return plan;
}

}  // namespace tandem::graph
