// The row dots of gradOutput and output that both passes of attention's backward subtract from the gradients of the
// weights. A row is dealt to as many lanes as it has pieces of eight elements; bound by the two loads of memory.

#include "kernels/cuda/attention_heads.h"
#include "kernels/cuda/reduce.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int threads = 256;

template <class T>
__global__ void __launch_bounds__(threads)
    deltasKernel(Heads<const T> gradOutput, Heads<const T> output, float* deltas, unsigned rows, unsigned heads,
                 unsigned time, int size, unsigned lanes, bool vectors) {
  const unsigned row = blockIdx.x * (threads / lanes) + threadIdx.x / lanes;
  const int first = static_cast<int>(threadIdx.x % lanes) * pieceElements;
  // Rows in the order of memory, [batch, time, heads], so that neighbours read neighbouring addresses.
  const int batch = static_cast<int>(row / heads / time), place = static_cast<int>(row / heads % time);
  const int head = static_cast<int>(row % heads);
  float sum = 0;
  if (row < rows) {
    float left[pieceElements], right[pieceElements];
    loadPiece(gradOutput.at(batch, place, head), first, size, vectors, left);
    loadPiece(output.at(batch, place, head), first, size, vectors, right);
#pragma unroll
    for (int i = 0; i < pieceElements; ++i) sum += left[i] * right[i];
  }
  for (unsigned distance = lanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(allLanes, sum, static_cast<int>(distance));
  if (row < rows && first == 0) deltas[(static_cast<std::int64_t>(batch) * heads + head) * time + place] = sum;
}

}  // namespace

void attentionDeltas(const AttentionBackward& call, float* deltas, Context& context) {
  withStorage(call.output.type, "AttentionBackward", [&](auto element) {
    using T = decltype(element);
    const Shape& shape = call.output.shape;
    const int lanes = lanesOfRow(static_cast<int>(shape[3]));
    const unsigned blocks = static_cast<unsigned>(ceilDivide(shape.rows() * lanes, threads));
    check(launch<deltasKernel<T>>({blocks, threads, 0, context.stream}, headsOf<T>(call.gradOutput),
                                  headsOf<T>(call.output), deltas, rowCount(shape), static_cast<unsigned>(shape[2]),
                                  static_cast<unsigned>(shape[1]), static_cast<int>(shape[3]),
                                  static_cast<unsigned>(lanes),
                                  rowsTakePieces(call.gradOutput) && rowsTakePieces(call.output)),
          "AttentionBackward, deltas");
  });
}

}  // namespace tandem::kernels::cuda
