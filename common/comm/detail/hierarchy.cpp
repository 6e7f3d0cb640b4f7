#include "common/comm/detail/hierarchy.h"

#include <memory>
#include <span>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/routes.h"

namespace tandem::comm::detail {
namespace {

using base::DType;

// Where the pieces of nodes lie in a whole, in the order of the ranks: those of one node follow each other.
class NodePieces {
 public:
  NodePieces(const Hierarchy& hierarchy, std::vector<std::int64_t> counts)
      : onNode_(static_cast<std::size_t>(hierarchy.inside->size())),
        place_(static_cast<std::size_t>(hierarchy.inside->rank())),
        nodes_(static_cast<std::size_t>(hierarchy.between->size())),
        counts_(std::move(counts)) {}

  std::size_t nodes() const { return nodes_; }
  std::span<const std::int64_t> ofNode(std::size_t node) const {
    return std::span(counts_).subspan(node * onNode_, onNode_);
  }
  std::int64_t nodeBegin(std::size_t node) const { return sum(std::span(counts_).first(node * onNode_)); }
  // Of the pieces at this rank's place of all nodes.
  std::vector<std::int64_t> ofPlace() const {
    std::vector<std::int64_t> result;
    for (std::size_t node = 0; node < nodes_; ++node) result.push_back(counts_[node * onNode_ + place_]);
    return result;
  }

 private:
  std::size_t onNode_, place_, nodes_;
  std::vector<std::int64_t> counts_;
};

// Memory for the pieces at one place of all nodes, one after the other.
class PlacePieces {
 public:
  PlacePieces(std::vector<std::int64_t> counts, DType type)
      : counts_(std::move(counts)),
        type_(type),
        bytes_(std::make_unique_for_overwrite<std::byte[]>(
            static_cast<std::size_t>(sum(counts_) * base::byteSize(type)))) {}

  const std::vector<std::int64_t>& counts() const { return counts_; }
  Buffer all() { return {bytes_.get(), type_, sum(counts_)}; }
  Buffer ofNode(std::size_t node) {
    return {at(bytes_.get(), sum(std::span(counts_).first(node)), type_), type_, counts_[node]};
  }

 private:
  std::vector<std::int64_t> counts_;
  DType type_;
  std::unique_ptr<std::byte[]> bytes_;
};

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
  const NodePieces pieces(hierarchy, std::move(counts));
  PlacePieces sums(pieces.ofPlace(), given.type);
  std::vector<std::unique_ptr<Request>> inside;
  for (std::size_t node = 0; node < pieces.nodes(); ++node) {
    const ConstBuffer ofNode(at(given.data, pieces.nodeBegin(node), given.type), given.type, sum(pieces.ofNode(node)));
    inside.push_back(hierarchy.inside->startReduceScatter(ofNode, sums.ofNode(node), pieces.ofNode(node)));
  }
  for (const auto& each : inside) co_await *each;
  Exchange between = ringReduceScatter({*hierarchy.between, tag, bf16OnWire}, sums.all(), received, sums.counts());
  co_await between;
}

Exchange hierarchicalAllGather(const Hierarchy& hierarchy, int tag, ConstBuffer given, Buffer received,
                               std::vector<std::int64_t> counts) {
  const NodePieces pieces(hierarchy, std::move(counts));
  PlacePieces gathered(pieces.ofPlace(), given.type);
  Exchange between = ringAllGather({*hierarchy.between, tag}, given, gathered.all(), gathered.counts());
  co_await between;
  // One after the other, as their messages are told apart by their order alone.
  for (std::size_t node = 0; node < pieces.nodes(); ++node) {
    const std::span<const std::int64_t> ofNode = pieces.ofNode(node);
    const Buffer whole{at(received.data, pieces.nodeBegin(node), received.type), received.type, sum(ofNode)};
    Exchange inside =
        ringAllGather({*hierarchy.inside, tag}, gathered.ofNode(node), whole, {ofNode.begin(), ofNode.end()});
    co_await inside;
  }
}

}  // namespace tandem::comm::detail
