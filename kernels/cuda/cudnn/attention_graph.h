#pragma once
// A call of attention as a graph of cuDNN's, built through cudnn-frontend.

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernels/tensor_view.h"

namespace tandem::kernels::cuda {

// How a tensor [sequences, tokens, heads, headSize] lies, in elements. Only the graph of packed documents has no use
// for the step from sequence to sequence.
struct HeadStrides {
  std::int64_t sequence = 0, token = 0, head = 0;
  auto operator<=>(const HeadStrides&) const = default;
};

// Everything that a graph depends on.
struct AttentionProblem {
  bool isBackward = false;
  bool isPacked = false;  // one sequence a document, by tables of lengths and offsets
  DType type = DType::bf16;
  std::int64_t sequences = 0;  // rows of the batch, or places for documents
  std::int64_t time = 0;       // of the longest sequence
  std::int64_t tokens = 0;     // of all together
  std::int64_t heads = 0, kvHeads = 0, headSize = 0;
  std::int64_t window = 0;
  float scale = 0;
  // In the order of AttentionTensor; those of gradients only with isBackward.
  std::array<HeadStrides, 8> strides{};
  auto operator<=>(const AttentionProblem&) const = default;
};

// Names of a graph's tensors. `statistics` are the logarithms of the sums of exponentials: [sequences, heads, time], or
// by token, [tokens, heads], where documents are packed.
enum AttentionTensor : std::int64_t {
  query,
  key,
  value,
  output,
  gradOutput,
  gradQuery,
  gradKey,
  gradValue,
  statistics,
  lengthsOfQueries,
  lengthsOfKeys,
  firstOffset  // + the tensor's number: its offsets
};

class AttentionGraph {
 public:
  virtual ~AttentionGraph() = default;
  virtual std::int64_t workspaceBytes() const = 0;
  // Empty, or cuDNN's reason.
  virtual std::string execute(cudnnHandle_t handle, const std::map<std::int64_t, void*>& tensors, void* workspace) = 0;
};

struct BuiltGraph {
  std::unique_ptr<AttentionGraph> graph;  // null: refused
  std::string refusal;
};
// Asks cuDNN for a plan. Gradients are asked for in a fixed order of sums, so that a resumed run gives the same bits.
BuiltGraph buildAttentionGraph(const AttentionProblem& problem, cudnnHandle_t handle);

// Asks whether a device that is only described (in JSON, as cuDNN keeps it) would have a plan, with no GPU at hand:
// cuDNN's refusal, or nothing.
std::string whyNoPlanFor(const AttentionProblem& problem, const std::string& device);

}  // namespace tandem::kernels::cuda
