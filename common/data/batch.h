#pragma once
// A batch: rows of tokens with, for each token, its target, where its document begins, and its position.
//
// Row by row, for token t of a window:
//   targets[t]        the next token if it belongs to the same document (and may be one by the dataset's loss mask),
//                     else noTarget; the next token of the row's last one is read from beyond the window
//   documentStart[t]  index in the row of the first token of its document, 0 when that began before the window;
//                     attention looks at the tokens from there to t
//   positions[t]      t - documentStart[t]
// With crossDocuments the rows are plain text: documentStart 0, positions t, targets across documents too.
// A window that ends with its dataset before it is full is padded: token 0, noTarget, a document of its own.
//
// Every token of a dataset that is a target is a target in exactly one window, so sums over all windows are exact.
// Rows that are packed of whole documents instead are in rows.h.

#include <cstdint>
#include <span>
#include <vector>

#include "common/data/dataset.h"

namespace tandem::data {

constexpr std::int32_t noTarget = -1;

struct Batch {
  std::int64_t rows = 0;
  std::int64_t sequenceLength = 0;
  std::int64_t targetCount = 0;  // targets that are not noTarget
  std::int64_t firstSample = 0;  // global index of the first row's sample
  // rows x sequenceLength values each.
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::vector<std::int32_t> documentStart;
  std::vector<std::int32_t> positions;

  // Where each document of packed rows lies (rows.h), in the order of the places.
  struct Document {
    std::int64_t begin = 0, count = 0;  // in the values above
    std::int64_t dataset = 0;           // of a TrainingData
    std::int64_t document = 0;          // of the dataset
  };
  std::vector<Document> documents;

  // All rows padding.
  Batch(std::int64_t rows, std::int64_t sequenceLength);
};

// Fills a row of a batch with a window of a dataset.
void fillRow(Batch& batch, std::int64_t row, const Dataset& dataset, std::int64_t window, bool crossDocuments);

// Documents in `rows` rows from firstRow on, as attention sees them: places where documentStart is the place itself.
std::int64_t countDocuments(const Batch& batch, std::int64_t firstRow, std::int64_t rows);

// The number of bytes that each token stands for; 0 for special tokens, which no text has. Summed over targets it is
// the denominator of bits per byte.
std::vector<std::int32_t> tokenByteLengths(const std::string& tokenizerJson);

}  // namespace tandem::data
