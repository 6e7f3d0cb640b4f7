#pragma once
// Transformer families written as graphs, once, without a word on gradients, memory or sharding.
//
// Names of parameters: embedding.weight, embedding.position_weight, layers.N.attention_norm.{weight,bias},
// layers.N.attention.qkv.{weight,bias} (rows: queries, keys, values), layers.N.attention.{query,key}_norm.weight,
// layers.N.attention.output.{weight,bias}, layers.N.mlp_norm.{weight,bias}, layers.N.mlp.up.{weight,bias} or
// layers.N.mlp.gate_up.{weight,bias} (rows: gate, then up), layers.N.mlp.down.{weight,bias}, final_norm.{weight,bias},
// and head.weight unless the embedding serves as the head. Matrices are [outputs, inputs].

#include <cstdint>
#include <span>
#include <string>

#include "common/graph/program.h"
#include "common/model/configuration.h"

namespace tandem::model {

// Inputs: tokens, targets, document_start, positions, each int32 [batch, time]. Output: losses float32 [batch, time],
// zero where the target is -1. `storage` is the type of parameters and activations.
graph::Program buildLoss(const Configuration& configuration, std::int64_t batch, std::int64_t time,
                         graph::DType storage);

// The same network up to logits, all of them: output "logits" [batch, time, vocabulary]. For tests and comparisons.
graph::Program buildLogits(const Configuration& configuration, std::int64_t batch, std::int64_t time,
                           graph::DType storage);

// What a KV cache is held in: the type of activations, or 8 bits with a scale for each head and position.
enum class CacheFormat : std::uint8_t { asStored, int8 };

// New tokens over a KV cache. Inputs: tokens, positions int32 [batch, fresh]; lengths int32 [batch] (tokens in the
// cache before). States: layers.N.{key,value}_cache [batch, kvHeads, capacity, headSize], or int8 with rows of
// kernels::cacheRowBytes. Output: "final_norm" [batch, fresh, width].
graph::Program buildDecode(const Configuration& configuration, std::int64_t batch, std::int64_t fresh,
                           std::int64_t capacity, graph::DType storage, CacheFormat caches = CacheFormat::asStored);

// The projection onto the vocabulary alone: input "hidden" [batch, width], output "logits" [batch, vocabulary].
graph::Program buildHead(const Configuration& configuration, std::int64_t batch, graph::DType storage);

// A fixed number for a parameter's name: the purpose of its random numbers.
std::uint64_t purposeOf(const std::string& name);

// The initial values of elements [begin, begin + target.size()) of a flattened parameter: normal with the deviation
// initializer_range (projections back into the residual stream divided by sqrt(2 * layers), as GPT-2 does), ones for
// norms, zeros for biases. A function of (seed, name, element), so every rank makes just its own piece.
void initialise(const Configuration& configuration, const std::string& parameter, std::uint64_t seed,
                std::int64_t begin, std::span<float> target);

}  // namespace tandem::model
