#pragma once
// The CUDA operators, a file a family (norm.cu, attention.cu, ...); cuda_backend.cpp forwards the contract to them.
// Each enqueues on the context's stream and returns; none waits, none allocates once its scratch has grown.

#include "kernels/backend.h"
#include "kernels/cuda/attention_path.h"
#include "kernels/cuda/device.h"

namespace tandem::kernels::cuda {

class MatrixProduct;   // matrix_product.h: the only caller of cuBLASLt
class CudnnAttention;  // cudnn_attention.h: the only caller of cuDNN

// What every operator may use besides its operands; one a stream.
struct Context {
  cudaStream_t stream = nullptr;
  const DeviceProperties* device = nullptr;
  MatrixProduct* matrixProduct = nullptr;
  AttentionPaths* attention = nullptr;
  bool isRecording = false;         // what is enqueued now runs later, perhaps often
  CudnnAttention* cudnn = nullptr;  // null where the paths do not try it
  Scratch scratch;
};

void run(const Embedding&, Context&);
void run(const EmbeddingBackward&, Context&);
void run(const Norm&, Context&);
void run(const NormBackward&, Context&);
void run(const Linear&, Context&);
void run(const LinearBackwardInput&, Context&);
void run(const LinearBackwardWeight&, Context&);
void run(const QuantisedLinear&, Context&);
void run(const QuantisedEmbedding&, Context&);
void run(const Dequantise&, Context&);
void run(const Activation&, Context&);
void run(const ActivationBackward&, Context&);
void run(const Add&, Context&);
void run(const Dropout&, Context&);
void run(const RowNorms&, Context&);
void run(const Rescale&, Context&);
void run(const RescaleBackward&, Context&);
void run(const Rotary&, Context&);
void run(const RotaryBackward&, Context&);
void run(const Attention&, Context&);
void run(const AttentionBackward&, Context&);
void run(const MergeAttention&, Context&);
void run(const CachedAttention&, Context&);
void run(const LinearCrossEntropy&, Context&);
void run(const PartialCrossEntropy&, Context&);
void run(const MergeCrossEntropy&, Context&);
void run(const PartialCrossEntropyBackward&, Context&);
void run(const AdamW&, Context&);
void run(const NewtonSchulz&, Context&);
void run(const SquaredNorm&, Context&);
void run(const Scale&, Context&);
void run(const Axpy&, Context&);
void run(const Cast&, Context&);
void run(const Fill&, Context&);

}  // namespace tandem::kernels::cuda
