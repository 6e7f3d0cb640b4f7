#include "common/runtime/continuation_scorer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/base/error.h"

namespace tandem::runtime {
namespace {

// Large blocks make matrix products efficient, small ones waste little on a text's end.
constexpr std::array<std::int64_t, 3> blockSizes = {128, 32, 8};

std::int64_t sharedLength(std::span<const std::int32_t> first, std::span<const std::int32_t> second) {
  return std::ranges::mismatch(first, second).in1 - first.begin();
}

// The hidden state after the last token is asked for nothing.
std::span<const std::int32_t> computed(const ContinuationRequest& request) {
  return std::span(request.tokens).first(request.tokens.size() - 1);
}

// The hidden state at this place is the first that is asked for what follows.
std::int64_t firstAsked(const ContinuationRequest& request) { return std::ssize(request.tokens) - request.asked - 1; }

// The tokens that the requests of a group begin with.
std::span<const std::int32_t> commonTokens(const ContinuationGroup& group) {
  std::span<const std::int32_t> common = computed(group.front());
  for (const ContinuationRequest& request : group) {
    common = common.first(static_cast<std::size_t>(sharedLength(common, computed(request))));
  }
  return common;
}

}  // namespace

// A group's place in the caches, and the tokens that are going through the model there.
struct ContinuationScorer::Slot {
  std::span<const ContinuationRequest> requests;  // that the tokens belong to
  std::span<ContinuationScore> scores;            // of those
  std::span<const std::int32_t> tokens;           // all of them, from the first on
  std::int64_t cached = 0;                        // of these in the cache

  std::int64_t left() const { return std::max<std::int64_t>(std::ssize(tokens) - cached, 0); }
};

// A hidden state of which it is asked how likely a token follows.
struct ContinuationScorer::Row {
  std::int32_t token = 0;
  ContinuationScore* score = nullptr;
  std::int64_t hidden = 0;  // where it lies in hidden_
};

ContinuationScorer::ContinuationScorer(const model::Configuration& configuration, const ParameterStore& parameters,
                                       std::int64_t batch, std::int64_t capacity, kernels::Backend& backend,
                                       kernels::Stream& stream, std::shared_ptr<Arena> arena, DecodingRanks* ranks,
                                       model::CacheFormat caches)
    : vocabularySize_(configuration.vocabularySize),
      batch_(batch),
      capacity_(capacity + blockSizes.front()),  // the last block of a text may be padded beyond its end
      headRows_(std::max<std::int64_t>(batch, 16)) {
  const auto make = [&] {
    model_ = std::make_unique<CachedModel>(configuration, parameters, batch, capacity_, headRows_, backend, stream,
                                           std::move(arena), ranks, caches);
    for (const std::int64_t size : blockSizes) {
      blocks_.push_back(model_->compile(batch, size));
      model_->useSlots(*blocks_.back(), 0);
    }
  };
  if (ranks == nullptr) {
    make();
  } else {
    comm::agreeOn(ranks->copy(), make);
  }
}

ContinuationScorer::~ContinuationScorer() = default;

std::int64_t ContinuationScorer::sharedPrefix(std::span<const ContinuationGroup> groups) {
  if (groups.empty()) return 0;
  std::span<const std::int32_t> common = computed(groups.front().front());
  for (const ContinuationGroup& group : groups) {
    for (const ContinuationRequest& request : group) {
      const std::int64_t shared = std::min(sharedLength(common, computed(request)), firstAsked(request));
      common = common.first(static_cast<std::size_t>(shared));
    }
  }
  return std::ssize(common);
}

std::vector<ContinuationScores> ContinuationScorer::run(std::span<const ContinuationGroup> groups,
                                                        std::int64_t prefix) {
  std::vector<ContinuationScores> scores;
  for (const ContinuationGroup& group : groups) {
    scores.emplace_back(group.size());
    for (const ContinuationRequest& request : group) {
      TANDEM_ASSERT(request.asked >= 1 && firstAsked(request) >= 0, "something must stand before a continuation");
      TANDEM_ASSERT(std::ssize(request.tokens) <= capacity_ - blockSizes.front(), "a text is longer than the cache");
    }
  }
  const auto batch = static_cast<std::size_t>(batch_);
  for (std::size_t begin = 0; begin < groups.size(); begin += batch) {
    const std::size_t count = std::min(batch, groups.size() - begin);
    runBatch(groups.subspan(begin, count), prefix, std::span(scores).subspan(begin, count));
  }
  // Not before: other ranks go through all batches too.
  if (!isFinite_) throw base::Error(base::ErrorKind::numeric, "the model's logits are no numbers");
  return scores;
}

void ContinuationScorer::runBatch(std::span<const ContinuationGroup> groups, std::int64_t prefix,
                                  std::span<ContinuationScores> scores) {
  std::vector<Slot> slots(static_cast<std::size_t>(batch_));
  const auto shared = std::span(groups.front().front().tokens).first(static_cast<std::size_t>(prefix));
  if (!std::ranges::equal(shared, cachedPrefix_)) {
    for (Slot& slot : slots) slot.tokens = shared;
    feed(slots);
    cachedPrefix_.assign(shared.begin(), shared.end());
  }
  // Slots without a group keep the prefix too.
  for (Slot& slot : slots) slot = {.requests = {}, .scores = {}, .tokens = {}, .cached = prefix};
  std::size_t most = 0;
  std::vector<std::int64_t> common;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    slots[i] = {.requests = groups[i], .scores = scores[i], .tokens = commonTokens(groups[i]), .cached = prefix};
    common.push_back(std::ssize(slots[i].tokens));
    most = std::max(most, groups[i].size());
  }
  feed(slots);
  for (std::size_t number = 0; number < most; ++number) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (number >= groups[i].size()) {
        slots[i].tokens = {};
        continue;
      }
      slots[i] = {.requests = std::span(groups[i]).subspan(number, 1),
                  .scores = std::span(scores[i]).subspan(number, 1),
                  .tokens = computed(groups[i][number]),
                  .cached = common[i]};
    }
    feed(slots);
  }
}

void ContinuationScorer::feed(std::vector<Slot>& slots) {
  rows_.clear();
  hidden_.clear();
  while (std::ranges::any_of(slots, [](const Slot& slot) { return slot.left() > 0; })) feedBlock(slots);
  if (model_->hasLogits()) askHead();
}

// The next tokens of every slot, as many as the smallest block that suffices has room for. What a slot has no token for
// is padding behind its end, which the next tokens overwrite.
void ContinuationScorer::feedBlock(std::vector<Slot>& slots) {
  std::int64_t most = 0;
  for (const Slot& slot : slots) most = std::max(most, slot.left());
  std::size_t choice = 0;
  while (choice + 1 < blockSizes.size() && blockSizes[choice + 1] >= most) ++choice;
  const std::int64_t size = blockSizes[choice];
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch_ * size), 0), positions(tokens),
      lengths(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    lengths[i] = static_cast<std::int32_t>(slots[i].cached);
    const std::int64_t taken = std::min(slots[i].left(), size);
    for (std::int64_t t = 0; t < taken; ++t) {
      const std::size_t at = i * static_cast<std::size_t>(size) + static_cast<std::size_t>(t);
      tokens[at] = slots[i].tokens[static_cast<std::size_t>(slots[i].cached + t)];
      positions[at] = static_cast<std::int32_t>(slots[i].cached + t);
    }
  }
  model_->run(*blocks_[choice], tokens, positions, lengths, false);
  if (model_->hasLogits()) keepRows(slots, model_->hidden(*blocks_[choice]), size);
  for (Slot& slot : slots) slot.cached += std::min(slot.left(), size);
}

// Of the hidden states of a block, those that are asked for what follows.
void ContinuationScorer::keepRows(const std::vector<Slot>& slots, const std::vector<std::byte>& hidden,
                                  std::int64_t size) {
  const std::int64_t rowBytes = model_->rowBytes();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot& slot = slots[i];
    const std::int64_t end = slot.cached + std::min(slot.left(), size);
    for (std::int64_t place = slot.cached; place < end; ++place) {
      const std::int64_t from = static_cast<std::int64_t>(i) * size + place - slot.cached;
      bool isKept = false;
      for (std::size_t r = 0; r < slot.requests.size(); ++r) {
        if (place < firstAsked(slot.requests[r])) continue;
        if (!isKept) {
          const auto row = hidden.begin() + from * rowBytes;
          hidden_.insert(hidden_.end(), row, row + rowBytes);
          isKept = true;
        }
        rows_.push_back({.token = slot.requests[r].tokens[static_cast<std::size_t>(place + 1)],
                         .score = &slot.scores[r],
                         .hidden = std::ssize(hidden_) / rowBytes - 1});
      }
    }
  }
}

// Adds to the scores what the kept hidden states say.
void ContinuationScorer::askHead() {
  const auto vocabulary = static_cast<std::size_t>(vocabularySize_);
  const std::int64_t rowBytes = model_->rowBytes(), count = std::ssize(hidden_) / rowBytes;
  hidden_.resize(static_cast<std::size_t>((count + headRows_ - 1) / headRows_ * headRows_ * rowBytes));
  std::size_t next = 0;
  for (std::int64_t begin = 0; begin < count; begin += headRows_) {
    const std::vector<float> all = model_->logits(hidden_.data() + begin * rowBytes);
    std::int64_t summed = -1;
    double logSum = 0;
    for (; next < rows_.size() && rows_[next].hidden < begin + headRows_; ++next) {
      const Row& row = rows_[next];
      const auto logits = std::span(all).subspan(static_cast<std::size_t>(row.hidden - begin) * vocabulary, vocabulary);
      const double largest = static_cast<double>(*std::ranges::max_element(logits));
      if (row.hidden != summed) {
        double sum = 0;
        for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
        logSum = largest + std::log(sum);
        summed = row.hidden;
      }
      isFinite_ = isFinite_ && std::isfinite(logSum);
      const float own = logits[static_cast<std::size_t>(row.token)];
      row.score->logLikelihood += static_cast<double>(own) - logSum;
      row.score->isGreedy = row.score->isGreedy && std::ranges::max_element(logits) - logits.begin() == row.token;
    }
  }
}

}  // namespace tandem::runtime
