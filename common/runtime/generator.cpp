#include "common/runtime/generator.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <set>

#include "common/base/error.h"
#include "common/graph/passes.h"
#include "common/model/transformer.h"

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

  // Takes a token from logits; decides whether the sequence ends.
  void take(std::span<float> logits, std::int64_t limit, const OnToken& onToken) {
    const std::int32_t token = sampler->next(logits, history);
    const auto& stops = request->stopTokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) return end("stop_token");
    history.push_back(token);
    result.tokens.push_back(token);
    if (onToken && !onToken(index, token)) return end("stopped");
    if (static_cast<std::int64_t>(result.tokens.size()) >= request->maxTokens) return end("max_tokens");
    if (static_cast<std::int64_t>(history.size()) >= limit) return end("cache_full");
  }
  void end(const std::string& reason) {
    result.stopReason = reason;
    done = true;
  }
};

Generator::Generator(const model::Configuration& configuration, const ParameterStore& parameters, std::int64_t batch,
                     std::int64_t capacity, kernels::Backend& backend, kernels::Stream& stream,
                     std::shared_ptr<Arena> arena)
    : configuration_(configuration),
      batch_(batch),
      capacity_(capacity + blockSizes[0]),
      limit_(capacity),
      storage_(parameters.storage()),
      backend_(backend),
      stream_(stream) {
  const std::int64_t cacheElements = batch_ * configuration.kvHeads * capacity_ * configuration.headSize;
  caches_ =
      std::make_unique<DeviceMemory>(backend, 2 * configuration.layers * cacheElements * base::byteSize(storage_));
  auto compile = [&](const graph::Program& program) {
    auto executable = std::make_unique<Executable>(parameters.prepared(program), backend, stream, arena);
    parameters.bindTo(*executable);
    return executable;
  };
  for (const std::int64_t size : blockSizes) {
    prefillBlocks_.push_back(compile(graph::fuse(model::buildDecode(configuration, 1, size, capacity_, storage_))));
  }
  decode_ = compile(graph::fuse(model::buildDecode(configuration, batch_, 1, capacity_, storage_)));
  bindCaches(*decode_, 0);
  head_ = compile(model::buildHead(configuration, batch_, storage_));
}

Generator::~Generator() = default;

std::int64_t Generator::weightBytesOfStep() const {
  std::set<std::string> counted;
  std::int64_t bytes = 0;
  for (const graph::Program* program : {&decode_->program(), &head_->program()}) {
    for (const graph::Node& node : program->nodes()) {
      if (takesRows(node.op)) continue;
      for (const graph::TensorId id : node.inputs) {
        if (id == graph::none || program->tensor(id).role != graph::Role::parameter) continue;
        const graph::Tensor& weight = program->tensor(id);
        if (counted.insert(weight.name).second) bytes += weight.shape.count() * base::byteSize(weight.type);
      }
    }
  }
  return bytes;
}

std::int64_t Generator::cacheBytesOfToken() const {
  return 2 * configuration_.layers * configuration_.kvHeads * configuration_.headSize * base::byteSize(storage_);
}

void Generator::bindCaches(Executable& executable, std::int64_t firstSlot) const {
  const std::int64_t slot = configuration_.kvHeads * capacity_ * configuration_.headSize * base::byteSize(storage_);
  std::byte* memory = caches_->data();
  for (std::int64_t layer = 0; layer < configuration_.layers; ++layer) {
    for (const char* cache : {"key_cache", "value_cache"}) {
      executable.bind("layers." + std::to_string(layer) + "." + cache, memory + firstSlot * slot);
      memory += batch_ * slot;
    }
  }
}

std::vector<Generation> Generator::run(const std::vector<GenerationRequest>& requests, const SamplingOptions& sampling,
                                       const OnToken& onToken) {
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
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].done) continue;
    const Clock::time_point start = Clock::now();
    std::vector<float> logits = prefill(sequences[i], static_cast<std::int64_t>(i));
    sequences[i].result.prefillSeconds = secondsSince(start);
    sequences[i].take(logits, limit_, onToken);
  }
  while (std::any_of(sequences.begin(), sequences.end(), [](const Sequence& s) { return !s.done; })) {
    decodeStep(sequences, onToken);
  }
  std::vector<Generation> results;
  for (Sequence& sequence : sequences) results.push_back(std::move(sequence.result));
  return results;
}

// Fills the cache with the prompt; returns the logits after its last token. Padding behind the prompt's end is written
// to the cache too, but beyond the sequence's length, where the next tokens overwrite it.
std::vector<float> Generator::prefill(Sequence& sequence, std::int64_t slot) {
  const auto count = static_cast<std::int32_t>(sequence.history.size());
  std::vector<std::byte> lastRow;
  while (sequence.cached < count) {
    const std::int32_t left = count - sequence.cached;
    const std::size_t choice = chooseBlock(left);
    const auto size = static_cast<std::int32_t>(blockSizes[choice]);
    Executable& block = *prefillBlocks_[choice];
    bindCaches(block, slot);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(size), 0), positions(static_cast<std::size_t>(size), 0);
    const std::int32_t taken = std::min(size, left);
    for (std::int32_t i = 0; i < taken; ++i) {
      tokens[static_cast<std::size_t>(i)] = sequence.history[static_cast<std::size_t>(sequence.cached + i)];
      positions[static_cast<std::size_t>(i)] = sequence.cached + i;
    }
    block.setInput("tokens", tokens.data());
    block.setInput("positions", positions.data());
    block.setInput("lengths", &sequence.cached);
    block.run();
    sequence.cached += taken;
    lastRow = rowOf(block, taken - 1);
  }
  lastRow.resize(static_cast<std::size_t>(batch_) * lastRow.size());
  std::vector<float> logits = logitsOf(lastRow);
  logits.resize(static_cast<std::size_t>(configuration_.vocabularySize));
  return logits;
}

// One token for every sequence that is not done; the slots of the others compute something that nobody reads.
void Generator::decodeStep(std::vector<Sequence>& sequences, const OnToken& onToken) {
  const Clock::time_point start = Clock::now();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch_), 0), lengths(static_cast<std::size_t>(batch_), 0);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    lengths[i] = sequences[i].cached;
    if (!sequences[i].done) tokens[i] = sequences[i].history[static_cast<std::size_t>(sequences[i].cached)];
  }
  decode_->setInput("tokens", tokens.data());
  decode_->setInput("positions", lengths.data());
  decode_->setInput("lengths", lengths.data());
  decode_->replay();
  std::vector<std::byte> hidden(static_cast<std::size_t>(batch_ * configuration_.width * base::byteSize(storage_)));
  decode_->readOutput("final_norm", hidden.data());
  std::vector<float> logits = logitsOf(hidden);
  const double seconds = secondsSince(start);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].done) continue;
    ++sequences[i].cached;
    sequences[i].result.decodeSeconds += seconds;
    const auto vocabulary = static_cast<std::size_t>(configuration_.vocabularySize);
    sequences[i].take(std::span(logits).subspan(i * vocabulary, vocabulary), limit_, onToken);
  }
}

std::vector<std::byte> Generator::rowOf(Executable& block, std::int64_t row) const {
  const graph::Tensor& hidden = block.program().tensor(block.program().find("final_norm"));
  std::vector<std::byte> all(static_cast<std::size_t>(hidden.shape.count() * base::byteSize(storage_)));
  block.readOutput("final_norm", all.data());
  const auto rowBytes = static_cast<std::ptrdiff_t>(configuration_.width * base::byteSize(storage_));
  return {all.begin() + row * rowBytes, all.begin() + (row + 1) * rowBytes};
}

// Logits [batch, vocabulary] of hidden states [batch, width].
std::vector<float> Generator::logitsOf(const std::vector<std::byte>& hidden) {
  head_->setInput("hidden", hidden.data());
  head_->replay();
  return head_->readFloats("logits");
}

}  // namespace tandem::runtime
