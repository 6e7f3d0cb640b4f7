#pragma once
// What is derived from a program. Each pass takes one and returns another; none changes what it computes, and tensor
// ids stay valid (a tensor that no node names any more takes no memory). A training program is made by
//   recompute(fuse(differentiate(fuse(forward))), policy)

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/graph/program.h"

namespace tandem::graph {

// add + norm become a norm with residual; linear + activation become a linear with an epilogue; a linearBackwardInput
// + activationBackward likewise. Runs on forward and on differentiated programs. The pre-activation is kept where
// something else reads it; differentiating a fused program makes it kept.
Program fuse(const Program& program);

// Whether a node is the last of a forward pass: the loss, or what hands activations to the next pipeline stage.
bool endsForwardPass(const Node& node);

// Appends the backward pass of the program's linearCrossEntropy node: the gradient, with respect to every parameter, of
// gradScale * sum of losses, where `gradScale` becomes a new input float32 [1]. The gradients are tensors of role
// gradient named gradientName(parameter), float32. Tensors used by several nodes get the sum of what flows back.
// Weights of role frozen get no gradient. A program that ends with a mergeCrossEntropy is treated alike; one that sends
// its activations to the next stage receives their gradient from it. Throws Error of kind usage for a program without a
// loss, and for a parameter that does not reach it.
Program differentiate(const Program& forward);

enum class Recompute : std::uint8_t {
  nothing,    // every activation that the backward pass reads is kept
  selective,  // what is cheap to make again (outputs of norms, activations, rescalings) is made again
  full,       // only the input of each layer is kept; a layer's forward pass runs again before its backward pass
};
// "none", "selective" or "full"; throws Error of kind usage for another text.
Recompute parseRecompute(const std::string& text);
// What is made again has the name of the first making and "#again".
Program recompute(const Program& differentiated, Recompute policy);

// Parameters that are held quantised, by name.
using QuantisedParameters = std::map<std::string, kernels::QuantisedFormat>;
// The names of the two tensors that then stand for a parameter.
std::string codesName(const std::string& parameter);
std::string scalesName(const std::string& parameter);
// For inference: nodes that read these parameters read codes and scales instead. A linear and an embedding have such a
// form; for the cross entropy of the head the matrix is made numbers again, once a run. The parameter itself stays in
// the program, read by no node. Throws Error of kind usage when another operator reads one.
// A frozen parameter, which is trained through (QLoRA; Dettmers et al. 2023), is made numbers again before each node
// that reads it, in the backward pass once more, so that one matrix at a time takes the memory of numbers and products
// are not rounded. For such programs this is the last pass; the parameter's role becomes that of an unread activation.
Program quantise(const Program& program, const QuantisedParameters& parameters);

// Rounds the operands of the linear layers whose weight's name begins with `prefix` to 8 bits, forward and backward:
// their nodes name a new state float32 [kernels::fp8::count] called fp8StateName(weight). Layers whose rows, inputs or
// outputs are not multiples of 16 stay as they are. The last of all passes.
Program useFp8(const Program& program, const std::string& prefix);
std::string fp8StateName(const std::string& weight);
// The weights of a program's layers that are rounded, in the order of their first use.
std::vector<std::string> fp8Weights(const Program& program);

// Where each activation lies in one arena: offsets are multiples of 64 bytes; two tensors overlap only when their lives
// do not, or one is a part of the other. Tensors that lie elsewhere have the offset -1.
struct MemoryPlan {
  std::vector<std::int64_t> offsets;  // by TensorId, in bytes
  std::int64_t arenaBytes = 0;
  std::int64_t peakLiveBytes = 0;  // the most that is alive at once: arenaBytes - peakLiveBytes is lost
};
MemoryPlan planMemory(const Program& program);

// What is alive at each node of what planMemory gives a place, in bytes: whole buckets of parameters, which others are
// parts of and have one size for any number of rows, and all the rest, which grows with the rows.
struct LiveBytes {
  std::int64_t buckets = 0;
  std::int64_t activations = 0;
};
std::vector<LiveBytes> liveBytes(const Program& program);

// What takes memory beside a program: optimizer states, for one.
struct OtherMemory {
  std::string kind;
  std::int64_t bytes = 0;
};

// A program that is under way several times at once, each time with inputs, outputs and activations of its own.
struct ProgramInFlight {
  const Program& program;
  const MemoryPlan& plan;
  std::int64_t times = 1;
};

// A table of what a step needs, by kind (parameters, gradients, activations by operator, ...), for the log. What
// several programs name alike (parameters, gradients) is there once.
std::string memoryTable(std::span<const ProgramInFlight> programs, const std::vector<OtherMemory>& others = {});

// Sum of the costs of all nodes.
struct ProgramCost {
  double flops = 0;
  double bytes = 0;
};
ProgramCost totalCost(const Program& program);

}  // namespace tandem::graph
