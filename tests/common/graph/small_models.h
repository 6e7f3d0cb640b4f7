#pragma once
// Small programs of the two families, written as `model` writes them: node by node, before any fusion.

#include "common/graph/program.h"

namespace tandem::graph::test {

struct SmallModel {
  std::int64_t batch = 2, time = 6, vocabulary = 13, width = 8, heads = 2, kvHeads = 2, hidden = 12, layers = 2;
  std::int64_t window = 0;
  bool tied = true;
  DType type = DType::f32;                                                 // of weights and activations
  bool queryKeyNorm = false;                                               // of the Llama-like one
  kernels::ActivationKind activation = kernels::ActivationKind::geluTanh;  // of the GPT-2-like one
};

// Learned positions, layer norms, biases; inputs tokens, positions, documentStart, targets; output losses.
Program gpt2Like(const SmallModel& model);
// RMS norms, rotary positions, SwiGLU, grouped queries.
Program llamaLike(const SmallModel& model);

}  // namespace tandem::graph::test
