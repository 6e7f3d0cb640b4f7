// Attention: which kernels take a call. cuDNN is asked; the tensor cores take 16-bit types, the head sizes that models
// have, and rows at multiples of 16 bytes, since their tiles are copied 16 bytes at a time.

#include <initializer_list>

#include "common/base/error.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/cudnn_attention.h"

namespace tandem::kernels::cuda {

namespace {

// Fewer fresh tokens than a tensor-core tile has rows leave most of it idle, while the cache has to be read at the
// speed of the memory: then it is split over blocks.
constexpr std::int64_t fewestTokensOfATile = 16;

// Why the tensor cores cannot take a call of these operands; empty if they can.
std::string obstacleOf(std::initializer_list<ConstTensorView> operands) {
  const ConstTensorView& first = *operands.begin();
  if (first.type != DType::bf16 && first.type != DType::f16) {
    return std::string("the storage type is ") + base::name(first.type) + ", not bfloat16 or float16";
  }
  const std::int64_t size = first.shape[3];
  if (size != 64 && size != 80 && size != 96 && size != 128) {
    return "the head size is " + std::to_string(size) + ", not 64, 80, 96 or 128";
  }
  for (const ConstTensorView& operand : operands) {
    if (!rowsLieAtMultiplesOf16Bytes(operand)) return "rows do not lie at multiples of 16 bytes";
  }
  return "";
}

// The tiles of the tensor cores are laid over whole rows.
template <class Call>
std::string obstacleOf(const Call& call, std::initializer_list<ConstTensorView> operands) {
  return isWholeRow(call) ? obstacleOf(operands) : "queries and keys are pieces of a longer row";
}

void checkHeadSize(const ConstTensorView& query) {
  if (query.shape[3] <= largestHeadSize) return;
  throw base::Error(base::ErrorKind::usage, "the CUDA attention kernels take head sizes up to " +
                                                std::to_string(largestHeadSize) + ", not " +
                                                std::to_string(query.shape[3]));
}

// Runs the call, and says by what.
AttentionKernels runByPath(const Attention& call, Context& context) {
  AttentionPaths& paths = *context.attention;
  if (paths.tries(AttentionKernels::cudnn) &&
      paths.took(AttentionKernels::cudnn, "Attention", context.cudnn->run(call, context))) {
    return AttentionKernels::cudnn;
  }
  if (paths.tries(AttentionKernels::tensorCores) &&
      paths.took(AttentionKernels::tensorCores, "Attention",
                 obstacleOf(call, {call.query, call.key, call.value, call.output}))) {
    flashForward(call, context);
    return AttentionKernels::tensorCores;
  }
  plainForward(call, context);
  return AttentionKernels::plain;
}

AttentionKernels runByPath(const AttentionBackward& call, Context& context) {
  AttentionPaths& paths = *context.attention;
  if (paths.tries(AttentionKernels::cudnn) &&
      paths.took(AttentionKernels::cudnn, "AttentionBackward", context.cudnn->run(call, context))) {
    return AttentionKernels::cudnn;
  }
  if (paths.tries(AttentionKernels::tensorCores) &&
      paths.took(AttentionKernels::tensorCores, "AttentionBackward",
                 obstacleOf(call, {call.query, call.key, call.value, call.output, call.gradOutput, call.gradQuery,
                                   call.gradKey, call.gradValue}))) {
    flashBackward(call, context);
    return AttentionKernels::tensorCores;
  }
  plainBackward(call, context);
  return AttentionKernels::plain;
}

template <class Call>
void runAndTime(const Call& call, const char* operatorName, bool isBackward, Context& context) {
  if (call.query.shape.count() == 0) return;
  checkHeadSize(call.query);
  const Shape& shape = call.query.shape;
  AttentionClock& clock = context.attention->clock();
  if (context.isRecording || !isWholeRow(call)) {  // its time is not now, or not to be told from its shape
    runByPath(call, context);
    return;
  }
  clock.start(context.stream);
  const AttentionKernels kernels = runByPath(call, context);
  clock.end(AttentionPaths::kindOf(operatorName, kernels),
            attentionOperations(shape[0], shape[2], shape[1], shape[3], call.window, isBackward), context.stream);
}

}  // namespace

bool rowsLieAtMultiplesOf16Bytes(const ConstTensorView& view) {
  const std::int64_t bytes = base::byteSize(view.type);
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) return false;
  for (int axis = 0; axis < 3; ++axis) {
    if (view.shape[axis] > 1 && view.strides[axis] * bytes % 16 != 0) return false;
  }
  return true;
}

void run(const Attention& call, Context& context) { runAndTime(call, "Attention", false, context); }

void run(const AttentionBackward& call, Context& context) { runAndTime(call, "AttentionBackward", true, context); }

void run(const CachedAttention& call, Context& context) {
  if (call.query.shape.count() == 0) return;
  checkHeadSize(call.query);
  extendCache(call, context);
  if (call.query.shape[1] < fewestTokensOfATile) {
    splitOverCache(call, context);
    return;
  }
  AttentionPaths& paths = *context.attention;
  const bool isCoded = call.keyCache.type == DType::i8;
  if (paths.tries(AttentionKernels::tensorCores) &&
      paths.took(AttentionKernels::tensorCores, "CachedAttention",
                 isCoded ? obstacleOf({call.query, call.output})
                         : obstacleOf({call.query, call.keyCache, call.valueCache, call.output}))) {
    flashOverCache(withNumbers(call, context), context);
  } else {
    splitOverCache(call, context);
  }
}

}  // namespace tandem::kernels::cuda
