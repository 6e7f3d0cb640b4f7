#include "common/data/batch.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::data {
namespace {

// The tokens of a window and the one behind it, where there is one.
struct Window {
  std::int64_t begin = 0;
  std::int64_t count = 0;                 // in the window, without the one behind
  std::vector<std::int32_t> tokens;       // count, or count + 1
  std::vector<std::uint8_t> mayBeTarget;  // as long, or empty
};

Window readWindow(const Dataset& dataset, std::int64_t window, std::int64_t sequenceLength) {
  Window result;
  result.begin = window * sequenceLength;
  TANDEM_ASSERT(window >= 0 && result.begin < dataset.tokenCount(), "window outside the dataset");
  const std::int64_t left = dataset.tokenCount() - result.begin;
  result.count = std::min(sequenceLength, left);
  result.tokens.resize(static_cast<std::size_t>(std::min(sequenceLength + 1, left)));
  dataset.readTokens(result.begin, result.tokens);
  if (dataset.hasLossMask()) {
    result.mayBeTarget.resize(result.tokens.size());
    dataset.readLossMask(result.begin, result.mayBeTarget);
  }
  return result;
}

}  // namespace

Batch::Batch(std::int64_t rows_, std::int64_t sequenceLength_) : rows(rows_), sequenceLength(sequenceLength_) {
  const auto count = static_cast<std::size_t>(rows * sequenceLength);
  tokens.assign(count, 0);
  targets.assign(count, noTarget);
  documentStart.assign(count, 0);
  positions.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(sequenceLength));
}

std::int64_t countDocuments(const Batch& batch, std::int64_t firstRow, std::int64_t rows) {
  const std::int32_t* const starts = batch.documentStart.data() + firstRow * batch.sequenceLength;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < rows * batch.sequenceLength; ++i) count += starts[i] == i % batch.sequenceLength;
  return count;
}

void fillRow(Batch& batch, std::int64_t row, const Dataset& dataset, std::int64_t window, bool crossDocuments) {
  TANDEM_ASSERT(row >= 0 && row < batch.rows, "row outside the batch");
  const Window content = readWindow(dataset, window, batch.sequenceLength);
  const std::span<const std::int64_t> offsets = dataset.documentOffsets();
  auto document = static_cast<std::size_t>(dataset.documentOf(content.begin));
  std::int64_t start = 0;
  for (std::int64_t t = 0; t < batch.sequenceLength; ++t) {
    const auto at = static_cast<std::size_t>(row * batch.sequenceLength + t);
    const bool padding = t >= content.count;
    if (!crossDocuments && content.begin + t == offsets[document + 1]) {  // the padding begins where the last one ends
      start = t;
      if (!padding) ++document;
    }
    batch.tokens[at] = padding ? 0 : content.tokens[static_cast<std::size_t>(t)];
    batch.documentStart[at] = static_cast<std::int32_t>(start);
    batch.positions[at] = static_cast<std::int32_t>(t - start);
    const auto next = static_cast<std::size_t>(t + 1);
    const bool sameDocument = crossDocuments || content.begin + t + 1 < offsets[document + 1];
    const bool isTarget = !padding && next < content.tokens.size() && sameDocument &&
                          (content.mayBeTarget.empty() || content.mayBeTarget[next] != 0);
    batch.targets[at] = isTarget ? content.tokens[next] : noTarget;
    batch.targetCount += isTarget;
  }
}

std::vector<std::int32_t> tokenByteLengths(const std::string& tokenizerJson) {
  const tokenizer::Tokenizer tokenizer = tokenizer::fromJson(tokenizerJson, "the stored tokenizer");
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(tokenizer.vocabularySize()));
  for (std::size_t id = 0; id < lengths.size(); ++id) {
    const auto token = static_cast<tokenizer::TokenId>(id);
    lengths[id] = tokenizer.isSpecial(token) ? 0 : static_cast<std::int32_t>(tokenizer.tokenBytes(token).size());
  }
  return lengths;
}

}  // namespace tandem::data
