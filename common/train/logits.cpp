#include "common/train/logits.h"

#include <algorithm>
#include <cmath>

#include "common/base/error.h"
#include "common/graph/passes.h"
#include "common/hdf5/hdf5.h"
#include "common/model/transformer.h"
#include "common/sharding/rank_program.h"
#include "common/train/model_state.h"

namespace tandem::train {
namespace {

using base::DType;
using base::Error;
using base::ErrorKind;

// log(sum of exp), without overflow.
double logSum(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

void checkTokens(std::span<const std::int32_t> tokens, const model::Configuration& c) {
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < c.vocabularySize) continue;
    throw Error(ErrorKind::badData, "the text has the token " + std::to_string(token) + ", the model only " +
                                        std::to_string(c.vocabularySize));
  }
  if (std::ssize(tokens) > c.maximumPositions) {
    throw Error(ErrorKind::usage, "the text has " + std::to_string(tokens.size()) + " tokens, more than the model's " +
                                      std::to_string(c.maximumPositions) + " positions");
  }
  if (tokens.empty()) throw Error(ErrorKind::usage, "the text has no tokens");
}

// Walks through a text block by block.
template <class Work>
void overBlocks(std::span<const std::int32_t> tokens, const Work& work) {
  const auto most = static_cast<std::size_t>(TextLogits::blockRows);
  for (std::size_t begin = 0; begin < tokens.size(); begin += most) {
    work(begin, tokens.subspan(begin, std::min(most, tokens.size() - begin)));
  }
}

}  // namespace

TextLogits::TextLogits(const checkpoint::ModelSource& model, std::int64_t tokens, const Device& device)
    : configuration_(model.configuration()) {
  const model::Configuration& c = configuration_;
  const std::int64_t capacity = (tokens + blockRows - 1) / blockRows * blockRows;
  graph::Program program = graph::fuse(model::buildDecode(c, 1, blockRows, capacity, DType::f32));
  graph::Program headProgram = model::buildHead(c, blockRows, DType::f32);
  // With the head's, all parameters are there.
  const auto layout =
      sharding::layoutOf(model::buildLogits(c, 1, 1, DType::f32), 1, sharding::FlatLayout::Ownership::anywhere);
  parameters_ = std::make_unique<runtime::ParameterStore>(layout, device.backend, device.stream, DType::f32,
                                                          runtime::ParameterStore::Gradients::none);
  loadWeights(model, *parameters_, device);
  body_ = std::make_unique<runtime::Executable>(std::move(program), device.backend, device.stream, device.arena);
  head_ = std::make_unique<runtime::Executable>(std::move(headProgram), device.backend, device.stream, device.arena);
  parameters_->bindTo(*body_);
  parameters_->bindTo(*head_);
  const std::int64_t cacheBytes = c.kvHeads * capacity * c.headSize * base::byteSize(DType::f32);
  caches_ = std::make_unique<runtime::DeviceMemory>(device.backend, 2 * c.layers * cacheBytes);
  std::byte* memory = caches_->data();
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    for (const char* cache : {"key_cache", "value_cache"}) {
      body_->bind("layers." + std::to_string(layer) + "." + cache, memory);
      memory += cacheBytes;
    }
  }
  hidden_.resize(static_cast<std::size_t>(blockRows * c.width));
  logits_.resize(static_cast<std::size_t>(blockRows * c.vocabularySize));
}

std::span<const float> TextLogits::next(std::span<const std::int32_t> tokens) {
  TANDEM_ASSERT(std::ssize(tokens) <= blockRows, "a block of tokens");
  std::vector<std::int32_t> padded(tokens.begin(), tokens.end()), positions(static_cast<std::size_t>(blockRows));
  padded.resize(positions.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) positions[i] = done_ + static_cast<std::int32_t>(i);
  body_->setInput("tokens", padded.data());
  body_->setInput("positions", positions.data());
  body_->setInput("lengths", &done_);
  body_->run();
  body_->readOutput("final_norm", hidden_.data());
  head_->setInput("hidden", hidden_.data());
  head_->run();
  head_->readOutput("logits", logits_.data());
  done_ += static_cast<std::int32_t>(tokens.size());
  return std::span(logits_).first(tokens.size() * static_cast<std::size_t>(configuration_.vocabularySize));
}

void LogitsAgreement::add(std::span<const float> first, std::span<const float> second, std::int64_t vocabulary) {
  const auto width = static_cast<std::size_t>(vocabulary);
  double sum = meanDivergence * static_cast<double>(tokens);
  for (std::size_t begin = 0; begin < first.size(); begin += width, ++tokens) {
    const auto p = first.subspan(begin, width), q = second.subspan(begin, width);
    const double logSumP = logSum(p), logSumQ = logSum(q);
    double divergence = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const double left = static_cast<double>(p[i]), right = static_cast<double>(q[i]);
      const double difference = std::abs(left - right);
      // So that what is no number is not lost.
      if (!(difference <= largestDifference)) largestDifference = difference;
      divergence += std::exp(left - logSumP) * ((left - logSumP) - (right - logSumQ));
    }
    sum += divergence;
    if (!(divergence <= largestDivergence)) largestDivergence = divergence;
    sameLikeliest += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin() ? 1 : 0;
  }
  meanDivergence = sum / static_cast<double>(tokens);
}

LogitsAgreement compareLogits(const checkpoint::ModelSource& first, const checkpoint::ModelSource& second,
                              std::span<const std::int32_t> tokens, const Device& device) {
  checkTokens(tokens, first.configuration());
  checkTokens(tokens, second.configuration());
  const std::int64_t vocabulary = first.configuration().vocabularySize;
  if (second.configuration().vocabularySize != vocabulary) {
    throw Error(ErrorKind::badData, "the models' vocabularies have " + std::to_string(vocabulary) + " and " +
                                        std::to_string(second.configuration().vocabularySize) + " tokens");
  }
  TextLogits one(first, std::ssize(tokens), device), other(second, std::ssize(tokens), device);
  LogitsAgreement agreement;
  overBlocks(tokens, [&](std::size_t, std::span<const std::int32_t> block) {
    const std::span<const float> left = one.next(block);
    agreement.add(left, other.next(block), vocabulary);
  });
  return agreement;
}

LogitsAgreement compareLogits(const checkpoint::ModelSource& model, const std::string& path, const Device& device) {
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Dataset tokenData = file.dataset("tokens"), logitData = file.dataset("logits");
  const std::int64_t count = tokenData.count(), vocabulary = model.configuration().vocabularySize;
  if (tokenData.type() != DType::i32 || logitData.type() != DType::f32 ||
      !(logitData.shape() == base::Shape{count, vocabulary})) {
    throw Error(ErrorKind::badData,
                path + " must have /tokens int32 [n] and /logits float32 [n, " + std::to_string(vocabulary) + "]");
  }
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  tokenData.read(0, count, tokens.data());
  checkTokens(tokens, model.configuration());
  TextLogits logits(model, count, device);
  LogitsAgreement agreement;
  std::vector<float> stored;
  overBlocks(tokens, [&](std::size_t begin, std::span<const std::int32_t> block) {
    const std::span<const float> computed = logits.next(block);
    stored.resize(computed.size());
    logitData.read(static_cast<std::int64_t>(begin) * vocabulary, std::ssize(computed), stored.data());
    agreement.add(computed, stored, vocabulary);
  });
  return agreement;
}

}  // namespace tandem::train
