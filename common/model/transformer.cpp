#include "common/model/transformer.h"

#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "kernels/quantised_cache.h"

namespace tandem::model {
namespace {

using graph::none;
using graph::Operator;
using graph::Program;
using graph::Role;
using graph::Shape;
using graph::TensorId;

// Writes one network into a program. The residual stream is [batch, time, width] throughout.
class Writer {
 public:
  Writer(const Configuration& configuration, std::int64_t batch, std::int64_t time, graph::DType storage)
      : c_(configuration), batch_(batch), time_(time), storage_(storage) {}

  // Everything up to the last norm. `attend` maps the projected (and rotated) qkv tensor to the heads' output.
  template <class Attend>
  TensorId body(TensorId tokens, TensorId positions, Attend attend) {
    const TensorId table = embeddingTable();
    const TensorId positionTable =
        c_.learnedPositions ? parameter("embedding.position_weight", {c_.maximumPositions, c_.width}) : none;
    TensorId stream = activation("embedding", {batch_, time_, c_.width});
    program_.addNode(Operator::embedding, {tokens, table, c_.learnedPositions ? positions : none, positionTable},
                     {stream}, graph::EmbeddingAttributes{});
    for (std::int64_t layer = 0; layer < c_.layers; ++layer) {
      program_.setLayer(static_cast<std::int32_t>(layer));
      prefix_ = "layers." + std::to_string(layer) + ".";
      TensorId qkv = linear("attention.qkv", norm("attention_norm", stream), c_.headLayout().width(), c_.qkvBias);
      if (!c_.learnedPositions) qkv = rotary(qkv, positions);
      const TensorId heads = attend(qkv);
      stream = add("attention.residual", stream, linear("attention.output", heads, c_.width, c_.outputBias));
      stream = add("mlp.residual", stream, mlp(norm("mlp_norm", stream)));
    }
    program_.setLayer(-1);
    prefix_.clear();
    return norm("final_norm", stream);
  }

  TensorId headWeight() {
    return c_.tiedEmbeddings ? embeddingTable() : parameter("head.weight", {c_.vocabularySize, c_.width});
  }

  TensorId input(const std::string& name, const Shape& shape) {
    return program_.addTensor(name, shape, graph::DType::i32, Role::input);
  }

  TensorId activation(const std::string& name, const Shape& shape) {
    return program_.addTensor(prefix_ + name, shape, storage_, Role::activation);
  }

  // Of a layer's heads: [batch, kvHeads, capacity, ..].
  TensorId cache(const std::string& name, std::int64_t capacity, CacheFormat format) {
    const bool isCoded = format == CacheFormat::int8;
    const std::int64_t row = isCoded ? kernels::cacheRowBytes(c_.headSize) : c_.headSize;
    return program_.addTensor(prefix_ + name, {batch_, c_.kvHeads, capacity, row},
                              isCoded ? graph::DType::i8 : storage_, Role::state);
  }

  graph::AttentionAttributes attentionAttributes() const {
    return {.layout = c_.headLayout(),
            .window = c_.slidingWindow,
            .scale = 1.0f / std::sqrt(static_cast<float>(c_.headSize))};
  }

  TensorId headsOutput() { return activation("attention.heads", {batch_, time_, c_.heads * c_.headSize}); }

  Program& program() { return program_; }

 private:
  TensorId parameter(const std::string& name, const Shape& shape) {
    return program_.addTensor(prefix_ + name, shape, storage_, Role::parameter);
  }

  TensorId embeddingTable() {
    const TensorId found = program_.find("embedding.weight");
    return found != none ? found : parameter("embedding.weight", {c_.vocabularySize, c_.width});
  }

  TensorId norm(const std::string& name, TensorId input) {
    const bool layerNorm = c_.norm == kernels::NormKind::layer;
    const TensorId weight = parameter(name + ".weight", {c_.width});
    const TensorId bias = layerNorm ? parameter(name + ".bias", {c_.width}) : none;
    const TensorId output = activation(name, {batch_, time_, c_.width});
    const TensorId mean = layerNorm ? statistic(name + ".mean", {batch_, time_}) : none;
    const TensorId reciprocal = statistic(name + ".reciprocal", {batch_, time_});
    program_.addNode(Operator::norm, {input, none, weight, bias}, {none, output, mean, reciprocal},
                     graph::NormAttributes{.kind = c_.norm, .epsilon = c_.normEpsilon});
    return output;
  }

  TensorId linear(const std::string& name, TensorId input, std::int64_t outputs, bool withBias) {
    const std::int64_t inputs = program_.tensor(input).shape.last();
    const TensorId weight = parameter(name + ".weight", {outputs, inputs});
    const TensorId bias = withBias ? parameter(name + ".bias", {outputs}) : none;
    const TensorId output = activation(name, {batch_, time_, outputs});
    program_.addNode(Operator::linear, {input, weight, bias}, {none, output}, graph::LinearAttributes{});
    return output;
  }

  TensorId rotary(TensorId qkv, TensorId positions) {
    const TensorId queryNorm = c_.queryKeyNorm ? parameter("attention.query_norm.weight", {c_.headSize}) : none;
    const TensorId keyNorm = c_.queryKeyNorm ? parameter("attention.key_norm.weight", {c_.headSize}) : none;
    const TensorId output = activation("attention.rotated", {batch_, time_, c_.headLayout().width()});
    const TensorId reciprocal =
        c_.queryKeyNorm ? statistic("attention.qk_reciprocal", {batch_, time_, c_.heads + c_.kvHeads}) : none;
    program_.addNode(Operator::rotary, {qkv, positions, queryNorm, keyNorm}, {output, reciprocal},
                     graph::RotaryAttributes{
                         .layout = c_.headLayout(), .frequencies = c_.rotaryFrequencies, .epsilon = c_.normEpsilon});
    return output;
  }

  TensorId mlp(TensorId input) {
    const TensorId up = c_.gatedMlp() ? linear("mlp.gate_up", input, 2 * c_.mlpWidth, c_.mlpBias)
                                      : linear("mlp.up", input, c_.mlpWidth, c_.mlpBias);
    const TensorId hidden = activation("mlp.activation", {batch_, time_, c_.mlpWidth});
    program_.addNode(Operator::activation, {up}, {hidden}, graph::ActivationAttributes{.kind = c_.activation});
    return linear("mlp.down", hidden, c_.width, c_.mlpBias);
  }

  TensorId add(const std::string& name, TensorId left, TensorId right) {
    const TensorId output = activation(name, {batch_, time_, c_.width});
    program_.addNode(Operator::add, {left, right}, {output});
    return output;
  }

  TensorId statistic(const std::string& name, const Shape& shape) {
    return program_.addTensor(prefix_ + name, shape, graph::DType::f32, Role::activation);
  }

  const Configuration& c_;
  std::int64_t batch_;
  std::int64_t time_;
  graph::DType storage_;
  std::string prefix_;
  Program program_;
};

// The body of a whole-sequence program: causal attention inside each document.
TensorId wholeSequenceBody(Writer& writer, std::int64_t batch, std::int64_t time, std::int64_t heads) {
  const TensorId tokens = writer.input("tokens", {batch, time});
  const TensorId documentStart = writer.input("document_start", {batch, time});
  const TensorId positions = writer.input("positions", {batch, time});
  return writer.body(tokens, positions, [&](TensorId qkv) {
    const TensorId output = writer.headsOutput();
    const std::string layerName = writer.program().tensor(output).name;
    const TensorId logSumExp = writer.program().addTensor(layerName + ".log_sum_exp", {batch, heads, time},
                                                          graph::DType::f32, Role::activation);
    writer.program().addNode(Operator::attention, {qkv, documentStart}, {output, logSumExp},
                             writer.attentionAttributes());
    return output;
  });
}

bool endsWith(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

}  // namespace

Program buildLoss(const Configuration& c, std::int64_t batch, std::int64_t time, graph::DType storage) {
  Writer writer(c, batch, time, storage);
  const TensorId hidden = wholeSequenceBody(writer, batch, time, c.heads);
  const TensorId targets = writer.input("targets", {batch, time});
  const TensorId losses = writer.program().addTensor("losses", {batch, time}, graph::DType::f32, Role::output);
  writer.program().addNode(Operator::linearCrossEntropy, {hidden, writer.headWeight(), targets, none},
                           {losses, none, none});
  return writer.program();
}

Program buildLogits(const Configuration& c, std::int64_t batch, std::int64_t time, graph::DType storage) {
  Writer writer(c, batch, time, storage);
  const TensorId hidden = wholeSequenceBody(writer, batch, time, c.heads);
  const TensorId logits = writer.program().addTensor("logits", {batch, time, c.vocabularySize}, storage, Role::output);
  writer.program().addNode(Operator::linear, {hidden, writer.headWeight(), none}, {none, logits},
                           graph::LinearAttributes{});
  return writer.program();
}

Program buildDecode(const Configuration& c, std::int64_t batch, std::int64_t fresh, std::int64_t capacity,
                    graph::DType storage, CacheFormat caches) {
  Writer writer(c, batch, fresh, storage);
  const TensorId tokens = writer.input("tokens", {batch, fresh});
  const TensorId positions = writer.input("positions", {batch, fresh});
  const TensorId lengths = writer.input("lengths", {batch});
  const TensorId hidden = writer.body(tokens, positions, [&](TensorId qkv) {
    const TensorId keys = writer.cache("key_cache", capacity, caches);
    const TensorId values = writer.cache("value_cache", capacity, caches);
    const TensorId output = writer.headsOutput();
    writer.program().addNode(Operator::cachedAttention, {qkv, lengths, keys, values}, {output},
                             writer.attentionAttributes());
    return output;
  });
  writer.program().tensor(hidden).role = Role::output;
  return writer.program();
}

Program buildHead(const Configuration& c, std::int64_t batch, graph::DType storage) {
  Writer writer(c, batch, 1, storage);
  const TensorId hidden = writer.program().addTensor("hidden", {batch, c.width}, storage, Role::input);
  const TensorId logits = writer.program().addTensor("logits", {batch, c.vocabularySize}, storage, Role::output);
  writer.program().addNode(Operator::linear, {hidden, writer.headWeight(), none}, {none, logits},
                           graph::LinearAttributes{});
  return writer.program();
}

// FNV-1a.
std::uint64_t purposeOf(const std::string& name) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

void initialise(const Configuration& c, const std::string& parameter, std::uint64_t seed, std::int64_t begin,
                std::span<float> target) {
  const bool isNorm = parameter.find("norm.") != std::string::npos;
  if (endsWith(parameter, "bias") || isNorm) {
    std::fill(target.begin(), target.end(), endsWith(parameter, "bias") ? 0.0f : 1.0f);
    return;
  }
  const bool intoStream = endsWith(parameter, "attention.output.weight") || endsWith(parameter, "mlp.down.weight");
  const float deviation = c.initializerRange / (intoStream ? std::sqrt(2.0f * static_cast<float>(c.layers)) : 1.0f);
  base::fillNormal(seed, base::purposeOf(parameter), begin, deviation, target);
}

}  // namespace tandem::model
