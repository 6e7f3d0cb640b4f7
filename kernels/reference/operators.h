#pragma once
// The reference operators: the contract of kernels/backend.h, written down as plainly as possible.
//
// One thread, plain loops, sums in double, one file a family. They are the oracle of all operator tests, so they are
// kept simple enough to be believed by reading: no blocking, no fusion, no trick.

#include "kernels/backend.h"

namespace tandem::kernels::reference {

void run(const Embedding&);
void run(const EmbeddingBackward&);
void run(const Norm&);
void run(const NormBackward&);
void run(const Linear&);
void run(const LinearBackwardInput&);
void run(const LinearBackwardWeight&);
void run(const QuantisedLinear&);
void run(const QuantisedEmbedding&);
void run(const Dequantise&);
void run(const Activation&);
void run(const ActivationBackward&);
void run(const Add&);
void run(const Dropout&);
void run(const RowNorms&);
void run(const Rescale&);
void run(const RescaleBackward&);
void run(const Rotary&);
void run(const RotaryBackward&);
void run(const Attention&);
void run(const AttentionBackward&);
void run(const MergeAttention&);
void run(const CachedAttention&);
void run(const LinearCrossEntropy&);
void run(const PartialCrossEntropy&);
void run(const MergeCrossEntropy&);
void run(const PartialCrossEntropyBackward&);
void run(const AdamW&);
void run(const NewtonSchulz&);
void run(const SquaredNorm&);
void run(const Scale&);
void run(const Axpy&);
void run(const Cast&);
void run(const Fill&);

// Of calls with `fp8`.
void runFp8(const Linear&);
void runFp8(const LinearBackwardInput&);
void runFp8(const LinearBackwardWeight&);
// The bias' part of it alone.
void biasGradient(const LinearBackwardWeight&);

}  // namespace tandem::kernels::reference
