#include "common/runtime/detail/ring_attention.h"

#include <array>
#include <memory>
#include <utility>

namespace tandem::runtime::detail {
namespace {

using kernels::HeadLayout;
using kernels::TensorView;

// Part `index` of a dense tensor whose first axis counts parts.
TensorView partOf(const TensorView& all, std::int64_t index) {
  base::Shape shape;
  for (int axis = 1; axis < all.shape.rank(); ++axis) shape.append(all.shape[axis]);
  return {static_cast<std::byte*>(all.data) + index * shape.count() * base::byteSize(all.type), all.type, shape};
}

// A piece of all rows of [batch, 2 pieces, width].
struct PieceRows {
  TensorView all;
  std::int64_t piece;  // 0 or 1

  std::int64_t length() const { return all.shape[1] / 2; }
  // Heads [first, first + count) as [batch, piece, heads, headSize].
  TensorView heads(std::int64_t first, std::int64_t count, std::int64_t headSize) const {
    const std::int64_t offset = piece * length() * all.shape[2] + first * headSize;
    return {static_cast<std::byte*>(all.data) + offset * base::byteSize(all.type),
            all.type,
            {all.shape[0], length(), count, headSize},
            {all.shape[1] * all.shape[2], all.shape[2], headSize, 1}};
  }
  // Of one row of the batch, all columns: dense.
  TensorView row(std::int64_t batch) const {
    const std::int64_t offset = (batch * all.shape[1] + piece * length()) * all.shape[2];
    return {static_cast<std::byte*>(all.data) + offset * base::byteSize(all.type), all.type, {length(), all.shape[2]}};
  }
};

// A piece of queries and a piece of keys of which it sees some.
struct Pair {
  int query, key;  // 0: the rank's early piece, 1: its late one
};

class Ring {
 public:
  Ring(const graph::Node& node, std::span<const TensorView> views, comm::Communicator& ranks, kernels::Backend& backend,
       kernels::Stream& stream)
      : node_(node),
        views_(views),
        ranks_(ranks),
        backend_(backend),
        stream_(stream),
        attributes_(std::get<graph::RingAttributes>(node.attributes)),
        length_(input(0).shape[1] / 2) {}

  TensorView input(std::size_t index) const { return views_[static_cast<std::size_t>(node_.inputs[index])]; }
  TensorView output(std::size_t index) const { return views_[static_cast<std::size_t>(node_.outputs[index])]; }
  const graph::AttentionAttributes& attention() const { return attributes_.attention; }
  const HeadLayout& layout() const { return attributes_.attention.layout; }
  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return stream_; }
  int rounds() const { return ranks_.size(); }

  // Whose keys are here in a round.
  int ownerIn(int round) const { return (ranks_.rank() - round + rounds()) % rounds(); }

  // Where a piece of a rank begins in its row.
  std::int64_t placeOf(int rank, int piece) const {
    return length_ * (piece == 0 ? rank : 2 * std::int64_t{rounds()} - 1 - rank);
  }

  // The pairs of a round in which keys do not lie behind the queries.
  std::vector<Pair> pairsWith(int owner) const {
    const int own = ranks_.rank();
    if (owner == own) return {{0, 0}, {1, 1}, {1, 0}};
    if (owner < own) return {{0, 0}, {1, 0}};
    return {{1, 0}, {1, 1}};
  }

  TensorView queries(const TensorView& qkv, int piece) const {
    return PieceRows{qkv, piece}.heads(0, layout().heads, layout().headSize);
  }
  TensorView keys(const TensorView& qkv, int piece) const {
    return PieceRows{qkv, piece}.heads(layout().heads, layout().kvHeads, layout().headSize);
  }
  TensorView values(const TensorView& qkv, int piece) const {
    return PieceRows{qkv, piece}.heads(layout().heads + layout().kvHeads, layout().kvHeads, layout().headSize);
  }

  // Starts the passing of a buffer to the next rank and the coming of another from the one before. Neighbours begin
  // with different ends of it, for libraries that do one after the other.
  void startPassing(const TensorView& given, const TensorView& received) {
    const int next = (ranks_.rank() + 1) % rounds(), before = (ranks_.rank() + rounds() - 1) % rounds();
    const auto send = [&] {
      underWay_.push_back(ranks_.startSend({given.data, given.type, given.shape.count()}, next, 0));
    };
    const auto receive = [&] {
      underWay_.push_back(ranks_.startReceive({received.data, received.type, received.shape.count()}, before, 0));
    };
    if (ranks_.rank() % 2 == 0) {
      send();
      receive();
    } else {
      receive();
      send();
    }
  }
  void wait() {
    for (const auto& request : underWay_) request->wait();
    underWay_.clear();
  }

  void fillWithZeros(const TensorView& view) {
    backend_.run(kernels::Fill{.target = {view.data, view.type, {view.shape.count()}}, .value = 0}, stream_);
  }

 private:
  const graph::Node& node_;
  std::span<const TensorView> views_;
  comm::Communicator& ranks_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  const graph::RingAttributes& attributes_;
  std::int64_t length_;  // of a piece
  std::vector<std::unique_ptr<comm::Request>> underWay_;
};

void attendPair(Ring& ring, const Pair& pair, int owner, int own, const TensorView& held) {
  const TensorView qkv = ring.input(0);
  const TensorView result = PieceRows{ring.output(0), pair.query}.heads(0, ring.layout().heads, ring.layout().headSize);
  const TensorView logSumExp = partOf(ring.output(1), pair.query);
  const bool isFirst = owner == own && pair.query == pair.key;  // later ones are merged into it
  const kernels::Attention call{.query = ring.queries(qkv, pair.query),
                                .key = ring.keys(held, pair.key),
                                .value = ring.values(held, pair.key),
                                .documentStart = partOf(ring.input(1), pair.query),
                                .window = ring.attention().window,
                                .scale = ring.attention().scale,
                                .output = isFirst ? result : ring.output(3),
                                .logSumExp = isFirst ? logSumExp : ring.output(4),
                                .firstQuery = ring.placeOf(own, pair.query),
                                .firstKey = ring.placeOf(owner, pair.key)};
  ring.backend().run(call, ring.stream());
  if (isFirst) return;
  ring.backend().run(
      kernels::MergeAttention{
          .otherOutput = ring.output(3), .otherLogSumExp = ring.output(4), .output = result, .logSumExp = logSumExp},
      ring.stream());
}

// sum += part, in each row of the batch; `part` is [batch, piece, width].
void addRows(Ring& ring, const PieceRows& sum, const TensorView& part) {
  for (std::int64_t batch = 0; batch < part.shape[0]; ++batch) {
    const TensorView target = sum.row(batch);
    ring.backend().run(kernels::Add{.left = target, .right = partOf(part, batch), .output = target}, ring.stream());
  }
}

// Gradients of a pair go into two buffers of whole rows: of the queries' columns and of the keys' and values'; the
// other columns of each are and stay zeros, so that rows can be added up whole.
void differentiatePair(Ring& ring, const Pair& pair, int owner, int own, const TensorView& held,
                       const TensorView& heldGradients) {
  const TensorView qkv = ring.input(0);
  const HeadLayout& layout = ring.layout();
  const TensorView ofQueries = partOf(ring.output(3), 0), ofKeys = partOf(ring.output(3), 1);
  const auto columns = [&](const TensorView& rows, std::int64_t first, std::int64_t count) -> TensorView {
    return {static_cast<std::byte*>(rows.data) + first * layout.headSize * base::byteSize(rows.type),
            rows.type,
            {rows.shape[0], rows.shape[1], count, layout.headSize},
            {rows.shape[1] * rows.shape[2], rows.shape[2], layout.headSize, 1}};
  };
  const auto outputs = [&](const TensorView& all) {
    return PieceRows{all, pair.query}.heads(0, layout.heads, layout.headSize);
  };
  ring.backend().run(
      kernels::AttentionBackward{.query = ring.queries(qkv, pair.query),
                                 .key = ring.keys(held, pair.key),
                                 .value = ring.values(held, pair.key),
                                 .documentStart = partOf(ring.input(1), pair.query),
                                 .output = outputs(ring.input(2)),
                                 .logSumExp = partOf(ring.input(3), pair.query),
                                 .gradOutput = outputs(ring.input(4)),
                                 .window = ring.attention().window,
                                 .scale = ring.attention().scale,
                                 .gradQuery = columns(ofQueries, 0, layout.heads),
                                 .gradKey = columns(ofKeys, layout.heads, layout.kvHeads),
                                 .gradValue = columns(ofKeys, layout.heads + layout.kvHeads, layout.kvHeads),
                                 .firstQuery = ring.placeOf(own, pair.query),
                                 .firstKey = ring.placeOf(owner, pair.key)},
      ring.stream());
  addRows(ring, {ring.output(0), pair.query}, ofQueries);
  addRows(ring, {heldGradients, pair.key}, ofKeys);
}

}  // namespace

void runRingAttention(const graph::Node& node, std::span<const TensorView> views, comm::Communicator& ranks,
                      kernels::Backend& backend, kernels::Stream& stream) {
  Ring ring(node, views, ranks, backend, stream);
  TensorView held = ring.input(0);
  for (int round = 0; round < ring.rounds(); ++round) {
    const bool isLast = round + 1 == ring.rounds();
    const TensorView coming = partOf(ring.output(2), round % 2);
    if (!isLast) ring.startPassing(held, coming);
    const int owner = ring.ownerIn(round);
    for (const Pair& pair : ring.pairsWith(owner)) attendPair(ring, pair, owner, ranks.rank(), held);
    ring.wait();
    held = coming;
  }
}

void runRingAttentionBackward(const graph::Node& node, std::span<const TensorView> views, comm::Communicator& ranks,
                              kernels::Backend& backend, kernels::Stream& stream) {
  Ring ring(node, views, ranks, backend, stream);
  ring.fillWithZeros(ring.output(0));
  ring.fillWithZeros(ring.output(3));
  TensorView held = ring.input(0), gradients = partOf(ring.output(2), 0), comingGradients = partOf(ring.output(2), 1);
  ring.fillWithZeros(gradients);
  for (int round = 0; round < ring.rounds(); ++round) {
    const bool isLast = round + 1 == ring.rounds();
    const TensorView coming = partOf(ring.output(1), round % 2);
    if (!isLast) ring.startPassing(held, coming);
    const int owner = ring.ownerIn(round);
    for (const Pair& pair : ring.pairsWith(owner)) {
      differentiatePair(ring, pair, owner, ranks.rank(), held, gradients);
    }
    ring.wait();
    ring.startPassing(gradients, comingGradients);
    ring.wait();
    std::swap(gradients, comingGradients);
    held = coming;
  }
  const TensorView all = ring.output(0);
  backend.run(kernels::Add{.left = {all.data, all.type, {all.shape.rows(), all.shape.last()}},
                           .right = {gradients.data, gradients.type, {all.shape.rows(), all.shape.last()}},
                           .output = {all.data, all.type, {all.shape.rows(), all.shape.last()}}},
              stream);
}

}  // namespace tandem::runtime::detail
