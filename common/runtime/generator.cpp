#include "common/runtime/generator.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <set>

#include "common/base/error.h"

namespace tandem::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Large blocks make matrix products of a prompt efficient, small ones waste little on its end.
constexpr std::int64_t blockSizes[] = {256, 64, 16};

// The smallest block that the rest of a prompt fits into, else the largest.
std::size_t chooseBlock(std::int64_t tokens) {
  std::size_t choice = 0;
  while (choice + 1 < std::size(blockSizes) && blockSizes[choice + 1] >= tokens) ++choice;
  return choice;
}

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Work that may fail on one rank alone ends alike on all.
void agreed(DecodingRanks* ranks, const std::function<void()>& work) {
  if (ranks == nullptr) return work();
  comm::agreeOn(ranks->copy(), work);
}

bool takesRows(graph::Operator op) {
  return op == graph::Operator::embedding || op == graph::Operator::quantisedEmbedding;
}

}  // namespace

struct Generator::Sequence {
  const GenerationRequest* request = nullptr;
  std::vector<std::int32_t> history;  // prompt and what was made
  std::int32_t cached = 0;            // tokens in the cache
  std::optional<Sampler> sampler;
  Generation result;
  std::int64_t index = 0;
  bool done = false;

  // Takes the next token, unless it ends the sequence; whether the caller wants more after it.
  bool take(std::int32_t token, const OnToken& onToken) {
    const auto& stops = request->stopTokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      end("stop_token");
      return true;
    }
    history.push_back(token);
    result.tokens.push_back(token);
    return !onToken || onToken(index, token);
  }
  void endAtLimits(std::int64_t limit) {
    if (static_cast<std::int64_t>(result.tokens.size()) >= request->maxTokens) return end("max_tokens");
    if (static_cast<std::int64_t>(history.size()) >= limit) end("cache_full");
  }
  void end(const std::string& reason) {
    result.stopReason = reason;
    done = true;
  }
};

Generator::Generator(const model::Configuration& configuration, const ParameterStore& parameters, std::int64_t batch,
                     std::int64_t capacity, kernels::Backend& backend, kernels::Stream& stream,
                     std::shared_ptr<Arena> arena, DecodingRanks* ranks, model::CacheFormat caches)
    : vocabularySize_(configuration.vocabularySize), batch_(batch), limit_(capacity), ranks_(ranks) {
  agreed(ranks, [&] {
    // The last block of a prompt may be padded beyond what a sequence may hold.
    model_ = std::make_unique<CachedModel>(configuration, parameters, batch, capacity + blockSizes[0], batch, backend,
                                           stream, std::move(arena), ranks, caches);
    for (const std::int64_t size : blockSizes) prefillBlocks_.push_back(model_->compile(1, size));
    decode_ = model_->compile(batch, 1);
    model_->useSlots(*decode_, 0);
  });
}

Generator::~Generator() = default;

std::int64_t Generator::weightBytesOfStep() const {
  std::set<std::string> counted;
  std::int64_t bytes = 0;
  const auto add = [&](const graph::Program& program) {
    for (const graph::Node& node : program.nodes()) {
      if (takesRows(node.op)) continue;
      for (const graph::TensorId id : node.inputs) {
        if (id == graph::none || program.tensor(id).role != graph::Role::parameter) continue;
        const graph::Tensor& weight = program.tensor(id);
        if (counted.insert(weight.name).second) bytes += weight.shape.count() * base::byteSize(weight.type);
      }
    }
  };
  add(decode_->program());
  if (model_->head() != nullptr) add(model_->head()->program());
  return bytes;
}

std::vector<Generator::Sequence> Generator::begin(const std::vector<GenerationRequest>& requests,
                                                  const SamplingOptions& sampling) const {
  TANDEM_ASSERT(static_cast<std::int64_t>(requests.size()) <= batch_, "more requests than the batch holds");
  std::vector<Sequence> sequences(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::int64_t length = static_cast<std::int64_t>(requests[i].prompt.size());
    if (length == 0)
      throw base::Error(base::ErrorKind::usage, "a prompt is empty, and there is no token to begin with");
    if (length >= limit_) {
      throw base::Error(base::ErrorKind::usage, "a prompt has " + std::to_string(length) +
                                                    " tokens; with the model's limit of " + std::to_string(limit_) +
                                                    " there is no room for an answer");
    }
    sequences[i].request = &requests[i];
    sequences[i].index = static_cast<std::int64_t>(i);
    sequences[i].history = requests[i].prompt;
    sequences[i].sampler.emplace(sampling, requests[i].sequence);
    if (requests[i].maxTokens <= 0) sequences[i].end("max_tokens");
  }
  return sequences;
}

std::vector<Generation> Generator::run(const std::vector<GenerationRequest>& requests, const SamplingOptions& sampling,
                                       const OnToken& onToken) {
  std::vector<Sequence> sequences = begin(requests, sampling);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].done) continue;
    const Clock::time_point start = Clock::now();
    std::vector<float> logits = prefill(sequences[i], static_cast<std::int64_t>(i));
    sequences[i].result.prefillSeconds = secondsSince(start);
    advance({&sequences[i]}, std::move(logits), onToken);
  }
  while (std::any_of(sequences.begin(), sequences.end(), [](const Sequence& s) { return !s.done; })) {
    decodeStep(sequences, onToken);
  }
  std::vector<Generation> results;
  for (Sequence& sequence : sequences) results.push_back(std::move(sequence.result));
  return results;
}

// Fills the cache with the prompt; returns the logits after its last token, where there are any. Padding behind the
// prompt's end is written to the cache too, but beyond the sequence's length, where the next tokens overwrite it.
std::vector<float> Generator::prefill(Sequence& sequence, std::int64_t slot) {
  const auto count = static_cast<std::int32_t>(sequence.history.size());
  Executable* last = nullptr;
  std::int64_t lastRow = 0;
  while (sequence.cached < count) {
    const std::int32_t left = count - sequence.cached;
    const std::size_t choice = chooseBlock(left);
    const auto size = static_cast<std::int32_t>(blockSizes[choice]);
    last = prefillBlocks_[choice].get();
    model_->useSlots(*last, slot);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(size), 0), positions(static_cast<std::size_t>(size), 0);
    const std::int32_t taken = std::min(size, left);
    for (std::int32_t i = 0; i < taken; ++i) {
      tokens[static_cast<std::size_t>(i)] = sequence.history[static_cast<std::size_t>(sequence.cached + i)];
      positions[static_cast<std::size_t>(i)] = sequence.cached + i;
    }
    model_->run(*last, tokens, positions, {sequence.cached}, false);
    sequence.cached += taken;
    lastRow = taken - 1;
  }
  if (!model_->hasLogits()) return {};
  const std::vector<std::byte> hidden = model_->hidden(*last);
  std::vector<std::byte> rows(static_cast<std::size_t>(batch_ * model_->rowBytes()));
  std::copy_n(hidden.begin() + lastRow * model_->rowBytes(), model_->rowBytes(), rows.begin());
  return model_->logits(rows.data());
}

// One token for every sequence that is not done; the slots of the others compute something that nobody reads.
void Generator::decodeStep(std::vector<Sequence>& sequences, const OnToken& onToken) {
  const Clock::time_point start = Clock::now();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch_), 0), lengths(static_cast<std::size_t>(batch_), 0);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    lengths[i] = sequences[i].cached;
    if (!sequences[i].done) tokens[i] = sequences[i].history[static_cast<std::size_t>(sequences[i].cached)];
  }
  model_->run(*decode_, tokens, lengths, lengths, true);
  std::vector<float> logits;
  if (model_->hasLogits()) logits = model_->logits(model_->hidden(*decode_).data());
  const double seconds = secondsSince(start);
  std::vector<Sequence*> rows;
  for (Sequence& sequence : sequences) {
    rows.push_back(sequence.done ? nullptr : &sequence);
    if (sequence.done) continue;
    ++sequence.cached;
    sequence.result.decodeSeconds += seconds;
  }
  advance(rows, std::move(logits), onToken);
}

// Gives each sequence the token that its row of the logits leads to; null stands where nobody reads a row.
void Generator::advance(const std::vector<Sequence*>& rows, std::vector<float> logits, const OnToken& onToken) {
  const std::vector<std::int32_t> tokens = chooseTokens(rows, logits);
  std::vector<std::int32_t> isStopped(rows.size(), 0);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] != nullptr && !rows[row]->take(tokens[row], onToken)) isStopped[row] = 1;
  }
  if (ranks_ != nullptr && onToken) ranks_->share(0, isStopped, [] {});
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] == nullptr || rows[row]->done) continue;
    if (isStopped[row] != 0) {
      rows[row]->end("stopped");
    } else {
      rows[row]->endAtLimits(limit_);
    }
  }
}

// Chosen by one rank that has the logits, and told to the others.
std::vector<std::int32_t> Generator::chooseTokens(const std::vector<Sequence*>& rows,
                                                  std::vector<float>& logits) const {
  std::vector<std::int32_t> tokens(rows.size(), 0);
  const auto choose = [&] {
    const auto vocabulary = static_cast<std::size_t>(vocabularySize_);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (rows[row] == nullptr) continue;
      const auto own = std::span(logits).subspan(row * vocabulary, vocabulary);
      tokens[row] = rows[row]->sampler->next(own, rows[row]->history);
    }
  };
  if (ranks_ == nullptr) {
    choose();
  } else {
    ranks_->share(ranks_->chooser(), tokens, choose);
  }
  return tokens;
}

}  // namespace tandem::runtime
