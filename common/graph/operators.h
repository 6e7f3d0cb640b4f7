#pragma once
// The registry: what is known of each operator, in one entry apiece (operators.cpp), so that a new one is one entry
// plus its kernels. An entry holds the rules for shapes, gradients, costs and how its kernel is called.
//
// Operands (optional ones in brackets):
//   embedding            tokens, weight, [positions, positionWeight]            -> output
//   embeddingBackward    tokens, [positions], gradOutput                        -> gradWeight, [gradPositionWeight]
//   norm                 input, [residual], weight, [bias]                      -> [sum], output, [mean], reciprocal
//   normBackward         gradOutput, [gradSum], input, weight, [mean], reciprocal -> gradInput, gradWeight, [gradBias]
//   linear               input, weight, [bias]                                  -> [preActivation], output
//   linearBackwardInput  gradOutput, weight, [preActivation]                    -> gradInput
//   linearBackwardWeight gradOutput, input                                      -> gradWeight, [gradBias]
//   activation           input                                                  -> output
//   activationBackward   gradOutput, input                                      -> gradInput
//   add                  left, right                                            -> output
//   dropout              input, [keys]                                          -> output
//   rowNorms             matrix, change                                         -> norms, changedNorms
//   rescale              input, gain, norms, changedNorms, [bias]               -> output
//   rescaleBackward      gradOutput, input, gain, norms, changedNorms           -> gradInput, gradGain
//   rotary               input, positions, [queryWeight, keyWeight]             -> output, [reciprocal]
//   rotaryBackward       gradOutput, positions, [input, queryWeight, keyWeight, reciprocal]
//                                                                               -> gradInput, [gradQueryWeight,
//                                                                               gradKeyWeight]
//   attention            qkv, documentStart                                     -> output, logSumExp
//   attentionBackward    qkv, documentStart, output, logSumExp, gradOutput      -> gradQkv
//   cachedAttention      qkv, lengths, keyCache, valueCache                     -> output   (writes the caches)
//   linearCrossEntropy   input, weight, targets, [gradScale]                    -> losses, [gradInput, gradWeight]
//   quantisedLinear      input, codes, scales, [bias]                           -> output
//   quantisedEmbedding   tokens, codes, scales, [positions, positionWeight]     -> output
//   dequantise           codes, scales                                          -> output
//   partialCrossEntropy  input, weight, targets                                 -> partials
//   mergeCrossEntropy    partials, targets, input, weight                       -> losses, logSumExp
//                        (input and weight are this part's, of which its gradient asks)
//   partialCrossEntropyBackward  input, weight, targets, logSumExp, gradScale   -> gradInput, [gradWeight]
//   reduceScatter        [gradients]                                            -> (the bucket's sums; attributes name
//   it) waitForSums          gradients                                              -> gatherWeights -> weights
//   waitForWeights       weights                                                ->
//   gatherRows           input                                                  -> output
//   scatterRows          input                                                  -> output
//   send                 input                                                  ->
//   receive                                                                     -> output
//   ringAttention        qkv, documentStart       -> output, logSumExp, keysAround, partialOutput, partialLogSumExp
//   ringAttentionBackward qkv, documentStart, output, logSumExp, gradOutput
//                                                 -> gradQkv, keysAround, gradientsAround, pair
// Operand lists always have the full length; `none` stands for an absent one.

#include <span>

#include "common/graph/program.h"

namespace tandem::graph {

// Operations are those of matrix products and attention, a multiplication and an addition counted as two, with the
// causal half of attention: over a training step they are the model FLOPs of MFU (6 N + 12 L d T a token). The rest of
// the operators is bound by memory, and counts as 0. Bytes are those read and written, each operand once; of an
// embedding's table only the rows of the tokens.
struct Cost {
  double flops = 0;
  double bytes = 0;
};

// How an operator can be split over ranks that each have a part of its columns, or of its rows.
enum class SplitRule : std::uint8_t {
  unsplit,     // not at all
  rows,        // row by row: norm, add
  columns,     // whole rows, each column (or pair of columns) by itself: activation
  heads,       // whole rows, each group of heads by itself: rotary, attention
  product,     // whole rows give any of the output's columns; some of the input's columns give a summand of all
  table,       // some of the table's rows give a summand of all
  vocabulary,  // some of the weight's rows give a part of the softmax
  message,     // rows that go to or come from another pipeline stage
};
SplitRule splitRule(Operator op);

// Whether an operator is carried out by exchanging activations with other ranks.
bool exchangesActivations(Operator op);
// The same of weights and gradients with the ranks that hold, or share out, the same ones.
bool exchangesParameters(Operator op);

// Floating-point operations and memory traffic of one node.
Cost cost(const Program& program, const Node& node);

// How a node is run: `views` gives the memory of each tensor of the program. `firstMicroBatch`: gradients are
// overwritten by their first writer instead of added to. `documents`: how many the rows of this run hold together, for
// attention (kernels::Attention); 0: unknown.
void runNode(const Program& program, const Node& node, std::span<const kernels::TensorView> views, bool firstMicroBatch,
             kernels::Backend& backend, kernels::Stream& stream, std::int64_t documents = 0);

// Whether output `output` of the node may have the memory of input `input`, if this node is the last to read it.
bool mayShareMemory(const Node& node, int output, int input);

// Checks the operand counts, shapes and types of every node, and that each activation is written once, before it is
// read. Throws Error of kind usage naming the node, the operand and the rule.
void check(const Program& program);

}  // namespace tandem::graph
