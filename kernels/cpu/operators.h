#pragma once
// The CPU operators, a file each (norm.cpp, attention.cpp, ...); cpu_backend.cpp forwards the contract to them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace tandem::kernels::cpu {

class MatrixProduct;  // matrix_product.h: the seam to oneDNN and OpenBLAS

// Memory that operators borrow for the time of a call: grows to the largest request once, then never allocates.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least that many bytes, aligned to 64, until the next call for the same slot. Slots keep nested users apart.
  static constexpr int slots = 8;
  std::byte* get(int slot, std::int64_t bytes);

 private:
  struct Block {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  Block blocks_[slots];
};

// What every operator may use besides its operands.
struct Context {
  int threads = 1;
  Scratch scratch;
  MatrixProduct* matrixProduct = nullptr;
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

}  // namespace tandem::kernels::cpu
