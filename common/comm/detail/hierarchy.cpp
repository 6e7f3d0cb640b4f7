#include "common/comm/detail/hierarchy.h"

#include <cstring>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/routes.h"

namespace tandem::comm::detail {
namespace {

using base::DType;

// The pieces of a whole, put in the order of their place on a node, then of the node, as one reduce-scatter inside the
// node deals them out.
class NodeOrder {
 public:
  NodeOrder(const Hierarchy& hierarchy, std::vector<std::int64_t> counts)
      : onNode_(hierarchy.inside->size()), nodes_(hierarchy.between->size()), counts_(std::move(counts)) {}

  // Of the pieces at one place of all nodes.
  std::vector<std::int64_t> betweenCounts(int place) const {
    std::vector<std::int64_t> result;
    for (int node = 0; node < nodes_; ++node) result.push_back(counts_[index(node, place)]);
    return result;
  }
  std::vector<std::int64_t> insideCounts() const {
    std::vector<std::int64_t> result;
    for (int place = 0; place < onNode_; ++place) result.push_back(sum(betweenCounts(place)));
    return result;
  }
  // Calls visit(begin in the order of ranks, begin in the order of places, elements) for every piece.
  template <class Visit>
  void forEachPiece(Visit&& visit) const {
    std::int64_t packed = 0;
    for (int place = 0; place < onNode_; ++place) {
      for (int node = 0; node < nodes_; ++node) {
        const std::size_t piece = index(node, place);
        visit(sum(std::span(counts_).first(piece)), packed, counts_[piece]);
        packed += counts_[piece];
      }
    }
  }

 private:
  std::size_t index(int node, int place) const { return static_cast<std::size_t>(node * onNode_ + place); }

  int onNode_, nodes_;
  std::vector<std::int64_t> counts_;
};

void copyElements(const void* source, std::int64_t from, void* target, std::int64_t to, std::int64_t count,
                  DType type) {
  if (count == 0) return;
  std::memcpy(at(target, to, type), at(source, from, type), static_cast<std::size_t>(count * base::byteSize(type)));
}

}  // namespace

std::optional<Hierarchy> findHierarchy(Communicator& group) {
  const int onNode = group.ranksOnThisHost(), ranks = group.size(), rank = group.rank();
  const std::vector<std::string> hosts = allGatherTexts(group, base::identity().host);
  const int first = rank / onNode * onNode;
  bool regular = ranks % onNode == 0 && onNode > 1 && onNode < ranks;
  for (int other = first; regular && other < first + onNode; ++other) {
    regular = hosts[static_cast<std::size_t>(other)] == hosts[static_cast<std::size_t>(rank)];
  }
  const auto vote = std::int64_t{regular ? onNode : 0};
  const std::int64_t least = allReduceScalar(group, vote, Reduction::minimum);
  if (least == 0 || allReduceScalar(group, vote, Reduction::maximum) != least) return std::nullopt;
  return Hierarchy{group.split(rank / onNode, rank), group.split(rank % onNode, rank)};
}

Exchange hierarchicalReduceScatter(const Hierarchy& hierarchy, int tag, bool bf16OnWire, ConstBuffer given,
                                   Buffer received, std::vector<std::int64_t> counts) {
  const NodeOrder order(hierarchy, std::move(counts));
  const auto elementBytes = static_cast<std::size_t>(base::byteSize(given.type));
  std::vector<std::byte> packed(static_cast<std::size_t>(given.count) * elementBytes);
  order.forEachPiece([&](std::int64_t begin, std::int64_t packedBegin, std::int64_t count) {
    copyElements(given.data, begin, packed.data(), packedBegin, count, given.type);
  });
  const std::vector<std::int64_t> insideCounts = order.insideCounts();
  const int place = hierarchy.inside->rank();
  const std::int64_t ofPlace = insideCounts[static_cast<std::size_t>(place)];
  std::vector<std::byte> sums(static_cast<std::size_t>(ofPlace) * elementBytes);
  const Buffer partial{sums.data(), given.type, ofPlace};
  const auto inside =
      hierarchy.inside->startReduceScatter({packed.data(), given.type, given.count}, partial, insideCounts);
  co_await *inside;
  Exchange between =
      ringReduceScatter({*hierarchy.between, tag, bf16OnWire}, partial, received, order.betweenCounts(place));
  co_await between;
}

Exchange hierarchicalAllGather(const Hierarchy& hierarchy, int tag, ConstBuffer given, Buffer received,
                               std::vector<std::int64_t> counts) {
  const NodeOrder order(hierarchy, std::move(counts));
  const auto elementBytes = static_cast<std::size_t>(base::byteSize(given.type));
  const std::vector<std::int64_t> insideCounts = order.insideCounts();
  const int place = hierarchy.inside->rank();
  std::vector<std::byte> packed(static_cast<std::size_t>(received.count) * elementBytes);
  const std::int64_t ownBegin = sum(std::span(insideCounts).first(static_cast<std::size_t>(place)));
  const Buffer own{at(packed.data(), ownBegin, given.type), given.type, insideCounts[static_cast<std::size_t>(place)]};
  Exchange between = ringAllGather({*hierarchy.between, tag}, given, own, order.betweenCounts(place));
  co_await between;
  Exchange inside =
      ringAllGather({*hierarchy.inside, tag}, own, {packed.data(), given.type, received.count}, insideCounts);
  co_await inside;
  order.forEachPiece([&](std::int64_t begin, std::int64_t packedBegin, std::int64_t count) {
    copyElements(packed.data(), packedBegin, received.data, begin, count, given.type);
  });
}

}  // namespace tandem::comm::detail
