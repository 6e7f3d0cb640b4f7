#pragma once
// How a dataset is cut into rows of one length.
//
// A dataset without a loss mask is a stream of text, and its rows are the windows of it (batch.h, sample_order.h). One
// with a loss mask is a set of examples (conversations), which are worth nothing in halves: its rows are whole
// documents, packed. A document of n tokens takes n - 1 places, since its last token is only a target; documents are
// placed longest first, each into the fullest row that has room for it, and stand in a row in the order of the dataset;
// what is left of a row is padding. Attention and targets keep to a document as everywhere, so nothing leaks.
//
// A document that is longer than a row is cut: its beginning is kept where that has a target, else the row that ends
// with its first answer (and of an answer longer than a row, the beginning). A document without a target is left out.
// With crossDocuments the rows are windows always.
//
// Of a dataset of preferences both documents of a pair stand in one row, one after the other; where they do not fit,
// one is cut to half a row or to what the other leaves of it. A pair is left out when one of both has no target, or
// when nothing is left that tells one from the other.

#include <cstdint>
#include <span>
#include <vector>

#include "common/data/batch.h"
#include "common/data/dataset.h"

namespace tandem::data {

class Rows {
 public:
  // Throws Error of kind badData for a dataset of examples, or pairs, of which none is left. The dataset must outlive
  // this.
  Rows(const Dataset& dataset, std::int64_t sequenceLength, bool crossDocuments);

  // In training, where the short last window is left out, and in evaluation, where it counts too.
  std::int64_t trainingCount() const;
  std::int64_t evaluationCount() const;

  // Fills a row of a batch with row `index` of the dataset.
  void fill(Batch& batch, std::int64_t row, std::int64_t index) const;

  bool arePacked() const { return packed_; }
  // Documents of which only a part is learned, and those that have no target; ascending. Empty unless packed.
  const std::vector<std::int64_t>& cutDocuments() const { return cut_; }
  const std::vector<std::int64_t>& documentsWithoutTarget() const { return withoutTarget_; }
  // Pairs that were left out because the parts of their documents that are kept are the same; ascending.
  const std::vector<std::int64_t>& pairsAlike() const { return pairsAlike_; }

 private:
  // A document, or the part of it that is kept: `count` places, whose targets reach one token further.
  struct Piece {
    std::int64_t document = 0;
    std::int64_t begin = 0;  // in the dataset's tokens
    std::int64_t count = 0;
  };

  std::int64_t placesFor(std::int64_t document) const;
  std::vector<Piece> choosePieces();
  bool areAlike(const Piece& one, const Piece& other) const;
  std::vector<Piece> onlyPairs(const std::vector<Piece>& pieces);
  void pack(const std::vector<Piece>& pieces, std::size_t together);

  const Dataset& dataset_;
  std::int64_t sequenceLength_;
  bool crossDocuments_;
  bool packed_;
  std::vector<Piece> pieces_;          // row by row
  std::vector<std::int64_t> offsets_;  // of the rows in pieces_; rows + 1 values
  std::vector<std::int64_t> cut_;
  std::vector<std::int64_t> withoutTarget_;
  std::vector<std::int64_t> pairsAlike_;
};

}  // namespace tandem::data
