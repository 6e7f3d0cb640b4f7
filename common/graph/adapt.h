#pragma once
// Low-rank adapters as a transformation of a program (LoRA; Hu et al. 2021): every parameter is frozen, and beside each
// chosen linear two small ones are learned,
//   output = linear(input) + scale * (dropout(input) A^T) B^T,   A [rank, inputs], B [outputs, rank].
// A linear of weight NAME.weight gets the parameters NAME.lora_a and NAME.lora_b. Where one linear makes several
// projections (queries, keys and values; gate and up) they share A, and their rows of B are their own.
//
// Decomposed (DoRA; Liu et al. 2024), the length of each row of the weight W is learned apart from its direction:
//   output = input W'^T + bias,   W' = (|W| + m) / |W + scale B A| * (W + scale B A)   row by row,
// where the norms are constants to the backward pass. The parameter NAME.lora_m [outputs] is what is added to the
// length |W| that a row has in the frozen weight, not the length itself, as PEFT has it: AdamW takes the same steps, it
// begins as zero whatever the weights are, and bfloat16 keeps digits of a small change that it would not keep of a sum.

#include <cstdint>
#include <functional>
#include <string>

#include "common/graph/program.h"

namespace tandem::graph {

struct Adapters {
  std::int64_t rank = 0;
  float scale = 1;
  float dropout = 0;        // probability, from 0 to below 1; adds the input "dropout_keys" int32 [batch, 2]
  bool decomposed = false;  // DoRA
  std::function<bool(const std::string& weight)> isChosen;
};

// Of a forward program, before any other pass. Throws Error of kind usage when no linear is chosen.
Program adapt(const Program& forward, const Adapters& adapters);

// "layers.0.mlp.down.weight" and 'a' give "layers.0.mlp.down.lora_a".
std::string adapterName(const std::string& weight, char which);

}  // namespace tandem::graph
