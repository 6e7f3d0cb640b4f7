// Calls of attention as problems of attention_graph.h, and the plans that cuDNN made for them.
//
// A batch whose rows are a document each is a graph of dense sequences. Documents packed into rows are sequences of
// varying length that lie one after the other: cuDNN has each one's length and offset in tables on the device. Its
// graph wants the number of sequences beforehand, so the number of documents is rounded up to a power of two, and what
// is left over is sequences of no tokens.
#include "kernels/cuda/cudnn_attention.h"

#include <bit>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>

#include "common/base/error.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/cuda/document_sequences.h"

namespace tandem::kernels::cuda {

namespace {

// Scratch slots of a call.
constexpr int workspaceSlot = 0, tablesSlot = 1, statisticsSlot = 2;

// More than that for one call would come out of what a model needs. Beyond half of it cuDNN is asked for its way of
// fixed sums that needs less and is slower.
constexpr std::int64_t largestWorkspace = std::int64_t{2} << 30;
constexpr const char* workspaceVariable = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";

// Lists of operands in the order of AttentionTensor.
using Operands = std::vector<ConstTensorView>;

HeadStrides stridesOf(const ConstTensorView& view) { return {view.strides[0], view.strides[1], view.strides[2]}; }

// Why no graph can say what this call wants; empty if one can.
template <class Call>
std::string obstacleOf(const Call& call, const Operands& operands) {
  const std::int64_t documents = call.documents;
  if (!isWholeRow(call)) return "queries and keys are pieces of a longer row";
  const ConstTensorView& first = operands.front();
  if (first.type != DType::bf16 && first.type != DType::f16) {
    return std::string("the storage type is ") + base::name(first.type) + ", not bfloat16 or float16";
  }
  if (documents == 0) return "how many documents the rows hold is not known";
  const bool isPacked = documents != first.shape[0];
  for (const ConstTensorView& operand : operands) {
    if (!rowsLieAtMultiplesOf16Bytes(operand)) return "rows do not lie at multiples of 16 bytes";
    if (!isPacked) continue;
    if (operand.shape[0] > 1 && operand.strides[0] != operand.shape[1] * operand.strides[1]) {
      return "documents are packed, but the rows of the batch do not follow one another";
    }
    if (operand.shape[0] * operand.shape[1] * operand.strides[1] > std::numeric_limits<std::int32_t>::max()) {
      return "documents are packed, and a tensor has more than 2^31 elements";
    }
  }
  return "";
}

AttentionProblem problemOf(const Operands& operands, std::int64_t documents, std::int64_t window, float scale) {
  const Shape& queries = operands[query].shape;
  AttentionProblem problem{.isBackward = operands.size() > gradOutput,
                           .isPacked = documents != queries[0],
                           .type = operands[query].type,
                           .sequences = queries[0],
                           .time = queries[1],
                           .tokens = queries[0] * queries[1],
                           .heads = queries[2],
                           .kvHeads = operands[key].shape[2],
                           .headSize = queries[3],
                           .window = window < queries[1] ? window : 0,
                           .scale = scale};
  if (problem.isPacked) {
    problem.sequences = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(documents)));
  }
  for (std::size_t i = 0; i < operands.size(); ++i) problem.strides[i] = stridesOf(operands[i]);
  return problem;
}

class Cudnn : public CudnnAttention {
 public:
  explicit Cudnn(cudnnHandle_t handle) : handle_(handle) {
    setenv(workspaceVariable, std::to_string(largestWorkspace / 2).c_str(), 0);
  }
  ~Cudnn() override {
    plans_.clear();
    cudnnDestroy(handle_);
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  std::string name() const override {
    const std::size_t version = cudnnGetVersion();
    return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  }

  std::string run(const Attention& call, Context& context) override {
    const Operands operands = {call.query, call.key, call.value, call.output};
    const std::string obstacle = obstacleOf(call, operands);
    if (!obstacle.empty()) return obstacle;
    const AttentionProblem problem = problemOf(operands, call.documents, call.window, call.scale);
    const std::lock_guard lock(mutex_);
    BuiltGraph& plan = planOf(problem);
    if (!plan.graph) return plan.refusal;
    std::map<std::int64_t, void*> tensors = pointersOf(operands);
    auto* logSumExp = static_cast<float*>(call.logSumExp.data);
    tensors[statistics] = logSumExp;
    if (problem.isPacked) {
      addTables(tensors, call.documentStart, problem, context);
      tensors[statistics] = context.scratch.get<float>(statisticsSlot, call.logSumExp.shape.count());
    }
    const std::string refusal = execute(plan, tensors, context);
    if (refusal.empty() && problem.isPacked) {
      tokensToHeads(static_cast<const float*>(tensors[statistics]), logSumExp, call.logSumExp.shape, context);
    }
    return refusal;
  }

  std::string run(const AttentionBackward& call, Context& context) override {
    const Operands operands = {call.query,      call.key,       call.value,   call.output,
                               call.gradOutput, call.gradQuery, call.gradKey, call.gradValue};
    const std::string obstacle = obstacleOf(call, operands);
    if (!obstacle.empty()) return obstacle;
    const AttentionProblem problem = problemOf(operands, call.documents, call.window, call.scale);
    const std::lock_guard lock(mutex_);
    BuiltGraph& plan = planOf(problem);
    if (!plan.graph) return plan.refusal;
    std::map<std::int64_t, void*> tensors = pointersOf(operands);
    const auto* logSumExp = static_cast<const float*>(call.logSumExp.data);
    tensors[statistics] = const_cast<float*>(logSumExp);
    if (problem.isPacked) {
      addTables(tensors, call.documentStart, problem, context);
      auto* byToken = context.scratch.get<float>(statisticsSlot, call.logSumExp.shape.count());
      headsToTokens(logSumExp, byToken, call.logSumExp.shape, context);
      tensors[statistics] = byToken;
    }
    return execute(plan, tensors, context);
  }

 private:
  static std::map<std::int64_t, void*> pointersOf(const Operands& operands) {
    std::map<std::int64_t, void*> pointers;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      pointers[static_cast<std::int64_t>(i)] = const_cast<void*>(operands[i].data);
    }
    return pointers;
  }

  // The plan of a problem, asked for when the first call like it comes.
  BuiltGraph& planOf(const AttentionProblem& problem) {
    const auto [place, isNew] = plans_.try_emplace(problem);
    BuiltGraph& plan = place->second;
    if (!isNew) return plan;
    plan = buildAttentionGraph(problem, handle_);
    if (plan.graph && plan.graph->workspaceBytes() > largestWorkspace) {
      plan = {nullptr, "its plan wants a workspace of " + std::to_string(plan.graph->workspaceBytes()) +
                           " bytes, more than " + std::to_string(largestWorkspace)};
    }
    return plan;
  }

  // Lengths and offsets of the documents, for each tensor and for the statistics.
  static void addTables(std::map<std::int64_t, void*>& tensors, const ConstTensorView& documentStart,
                        const AttentionProblem& problem, Context& context) {
    const int count = problem.isBackward ? gradValue + 1 : output + 1;
    DocumentTables tables{.capacity = problem.sequences, .tensors = count + 1};
    for (int i = 0; i < count; ++i) {
      tables.strides[static_cast<std::size_t>(i)] = problem.strides[static_cast<std::size_t>(i)].token;
    }
    tables.strides[static_cast<std::size_t>(count)] = problem.heads;
    tables.memory = context.scratch.get<std::int32_t>(tablesSlot, tables.count());
    fillTables(documentStart, tables, context);
    for (int i = 0; i < count; ++i) tensors[firstOffset + i] = tables.offsets(i);
    tensors[firstOffset + statistics] = tables.offsets(count);
    tensors[lengthsOfQueries] = tensors[lengthsOfKeys] = tables.lengths();
  }

  // A plan that fails when it is started is not started again.
  std::string execute(BuiltGraph& plan, const std::map<std::int64_t, void*>& tensors, Context& context) {
    const std::int64_t bytes = plan.graph->workspaceBytes();
    void* const workspace = bytes == 0 ? nullptr : context.scratch.get(workspaceSlot, bytes);
    const cudnnStatus_t status = cudnnSetStream(handle_, context.stream);
    if (status != CUDNN_STATUS_SUCCESS) {
      throw base::Error(base::ErrorKind::device, std::string("cuDNN, taking a stream: ") + cudnnGetErrorString(status));
    }
    const std::string refusal = plan.graph->execute(handle_, tensors, workspace);
    if (refusal.empty()) return "";
    const cudaError_t state = cudaStreamQuery(context.stream);  // after an error of the device nothing else would run
    if (state != cudaErrorNotReady) check(state, "attention by cuDNN, " + refusal);
    cudaGetLastError();  // forgets what was told
    plan = {nullptr, refusal};
    return refusal;
  }

  cudnnHandle_t handle_;
  std::mutex mutex_;  // streams of several threads share the handle and the plans
  std::map<AttentionProblem, BuiltGraph> plans_;
};

}  // namespace

CudnnSearch findCudnn() {
  const std::string obstacle = openCudnn();
  if (!obstacle.empty()) return {nullptr, obstacle};
  cudnnHandle_t handle = nullptr;
  const cudnnStatus_t status = cudnnCreate(&handle);
  if (status != CUDNN_STATUS_SUCCESS) {
    return {nullptr, std::string("cuDNN does not start: ") + cudnnGetErrorString(status)};
  }
  return {std::make_unique<Cudnn>(handle), ""};
}

}  // namespace tandem::kernels::cuda
