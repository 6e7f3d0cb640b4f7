// The layout in checkpoint.h5, which says where in the shards each piece of each tensor lies.

#include "common/checkpoint/detail/layout.h"
#include "tests/fuzz/fuzz.h"

void tandem::fuzz::fuzzOne(std::string_view bytes) {
  accepts([&] {
    const checkpoint::detail::Layout layout = checkpoint::detail::parseLayout(std::string(bytes));
    for (const auto& tensor : layout.tensors) {
      std::int64_t next = 0;
      for (const auto& piece : tensor.pieces) {
        demand(piece.targetBegin == next && piece.count > 0, "the pieces follow one another");
        demand(piece.sourceBegin >= 0 && piece.sourceBegin + piece.count > 0, "a piece lies in its shard");
        demand(piece.shard >= 0 && piece.shard < std::ssize(layout.shards), "a piece has a shard");
        next += piece.count;
      }
      demand(next == tensor.shape.count(), "the pieces are the tensor");
    }
    const std::string text = checkpoint::detail::toText(layout);
    demand(checkpoint::detail::toText(checkpoint::detail::parseLayout(text)) == text, "a layout is read as written");
  });
}
