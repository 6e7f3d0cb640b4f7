#pragma once
// What all attention kernels know of a call: where heads lie, which keys a query sees, which heads share keys.

#include <cstdint>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/storage.h"
#include "kernels/tensor_view.h"

namespace tandem::kernels::cuda {

// A view [batch, row, head, headSize]; rows are the time, or places of a cache.
template <class T>
struct Heads {
  T* data = nullptr;
  std::int64_t batchStride = 0, rowStride = 0, headStride = 0;  // in elements

  __device__ T* at(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return data + batch * batchStride + row * rowStride + head * headStride;
  }
};

template <class T>
Heads<const T> headsOf(const ConstTensorView& view) {
  return {static_cast<const T*>(view.data), view.strides[0], view.strides[1], view.strides[2]};
}
template <class T>
Heads<T> headsOf(const TensorView& view) {
  return {static_cast<T*>(view.data), view.strides[0], view.strides[1], view.strides[2]};
}
// Of a cache [batch, head, place, headSize].
template <class T>
Heads<T> cacheOf(const TensorView& view) {
  return {static_cast<T*>(view.data), view.strides[0], view.strides[2], view.strides[1]};
}

// Query `query` of a sequence stands at a position among the keys and sees [firstKey, position], as far as these are
// there. Positions and first keys never fall from one query to the next, so a run of queries sees what lies between its
// first's first key and its last's position.
struct Sight {
  const std::int32_t* documentStart = nullptr;  // [batch, queries]; null: all documents begin at 0
  const std::int32_t* lengths = nullptr;        // [batch]: keys before the first query; null: none
  int queries = 0;                              // of a sequence
  int window = 0;                               // 0: no limit
  int earlier = 0;   // keys before the one at the first query's place: of pieces of a row, possibly below 0
  int keyPlace = 0;  // of the first key in the row that documentStart counts in
  int keys = 0;      // of a sequence; only asked of calls that are no cache's

  __device__ int position(int batch, int query) const { return (lengths ? lengths[batch] : earlier) + query; }
  __device__ int firstKey(int batch, int query) const {
    const int document =
        documentStart ? documentStart[static_cast<std::int64_t>(batch) * queries + query] - keyPlace : 0;
    const int first = window > 0 ? max(document, position(batch, query) - window + 1) : document;
    return max(first, 0);
  }
  // The last key that the query sees of those that are there; before the first when there is none.
  __device__ int lastKey(int batch, int query) const { return min(position(batch, query), keys - 1); }
};

// Of a call over a whole row of the batch (Attention, AttentionBackward).
template <class Call>
Sight sightOf(const Call& call) {
  return {.documentStart = elements<std::int32_t>(call.documentStart),
          .lengths = nullptr,
          .queries = static_cast<int>(call.query.shape[1]),
          .window = static_cast<int>(call.window),
          .earlier = static_cast<int>(call.firstQuery - call.firstKey),
          .keyPlace = static_cast<int>(call.firstKey),
          .keys = static_cast<int>(call.key.shape[1])};
}

// Query head h reads the keys of head h * kvHeads / heads.
struct Grouping {
  int heads = 0, kvHeads = 0;

  __device__ int kvHeadOf(int head) const {
    return static_cast<int>(static_cast<std::int64_t>(head) * kvHeads / heads);
  }
  // The first head that reads `kvHead`; that of kvHead + 1 ends its group.
  __host__ __device__ int firstHeadOf(int kvHead) const {
    return static_cast<int>((static_cast<std::int64_t>(kvHead) * heads + kvHeads - 1) / kvHeads);
  }
  // Heads of the largest group.
  int largest() const { return (heads + kvHeads - 1) / kvHeads; }
};

template <class Call>
Grouping groupingOf(const Call& call) {
  return {static_cast<int>(call.query.shape[2]), static_cast<int>(call.key.shape[2])};
}

// Fills the operands that a pass of the backward kernels has under the contract's names, whatever else it has.
template <class T, class Operands>
void setOperands(Operands& operands, const AttentionBackward& call, const float* deltas) {
  operands.query = headsOf<T>(call.query);
  operands.key = headsOf<T>(call.key);
  operands.value = headsOf<T>(call.value);
  operands.gradOutput = headsOf<T>(call.gradOutput);
  operands.gradQuery = headsOf<T>(call.gradQuery);
  operands.gradKey = headsOf<T>(call.gradKey);
  operands.gradValue = headsOf<T>(call.gradValue);
  operands.logSumExp = elements<float>(call.logSumExp);
  operands.deltas = deltas;
  operands.sight = sightOf(call);
  operands.grouping = groupingOf(call);
  operands.scale = call.scale;
}

// The same of the forward pass.
template <class T, class Operands>
void setOperands(Operands& operands, const Attention& call) {
  operands.query = headsOf<T>(call.query);
  operands.key = headsOf<T>(call.key);
  operands.value = headsOf<T>(call.value);
  operands.output = headsOf<T>(call.output);
  operands.logSumExp = elements<float>(call.logSumExp);
  operands.sight = sightOf(call);
  operands.grouping = groupingOf(call);
  operands.scale = call.scale;
}

// Rows of a view of heads as kernels count and divide them: in 32 bits, which memory cannot exceed.
inline unsigned rowCount(const Shape& shape) {
  TANDEM_ASSERT(shape.rows() < std::int64_t{1} << 31, "a tensor of 2^31 rows of heads");
  return static_cast<unsigned>(shape.rows());
}

// A head's row dealt to neighbouring lanes in pieces of eight elements: 16 bytes of a 16-bit type.
constexpr int pieceElements = 8;

// Lanes that share a row: a power of two.
inline int lanesOfRow(int headSize) {
  int lanes = 1;
  while (lanes * pieceElements < headSize) lanes *= 2;
  return lanes;
}

// The piece that begins at element `first` of a row of `size`, zeros beyond its end. `vectors`: the row lies at a
// multiple of 16 bytes and has whole pieces.
template <class T>
__device__ __forceinline__ void loadPiece(const T* row, int first, int size, bool vectors, float (&to)[pieceElements]) {
  if (vectors && first < size) {
    load<pieceElements>(row + first, to);
    return;
  }
#pragma unroll
  for (int i = 0; i < pieceElements; ++i) to[i] = first + i < size ? toFloat(row[first + i]) : 0.0f;
}

// Whether every row of a view of heads can be read as whole pieces, 16 bytes at a time.
inline bool rowsTakePieces(const ConstTensorView& view) {
  return view.shape[3] % pieceElements == 0 && rowsLieAtMultiplesOf16Bytes(view);
}

}  // namespace tandem::kernels::cuda
