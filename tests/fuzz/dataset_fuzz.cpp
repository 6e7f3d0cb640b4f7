// A token dataset, and the tokenizer in it.

#include <algorithm>

#include "common/data/dataset.h"
#include "tests/fuzz/fuzz.h"

void tandem::fuzz::fuzzOne(std::string_view bytes) {
  const MemoryFile memory(bytes);
  data::isDataset(memory.path());
  accepts([&] {
    const data::Dataset dataset(memory.path());
    const std::int64_t most = std::int64_t{1} << 20;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(dataset.tokenCount(), most)));
    dataset.readTokens(0, tokens);
    for (const std::int32_t token : tokens) {
      demand(token >= 0 && token < dataset.description().vocabularySize, "tokens are in the vocabulary");
    }
    demand(dataset.documentOffsets().back() == dataset.tokenCount(), "the documents are all the tokens");
    demand(std::ranges::is_sorted(dataset.documentOffsets()), "documents follow one another");
    if (!dataset.hasLossMask()) return;
    std::vector<std::uint8_t> mask(tokens.size());
    dataset.readLossMask(0, mask);
  });
}
