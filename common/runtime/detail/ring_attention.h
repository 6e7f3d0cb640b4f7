#pragma once
// Attention over a row whose positions are dealt out over the ranks of the context group (Liu et al. 2023, Ring
// Attention).
//
// A row is cut into 2 n pieces for n ranks, and rank r has the pieces r and 2 n - 1 - r: under the causal mask early
// pieces see little and late ones much, so that each rank has the same to do in each of the n rounds. In a round a rank
// attends over the keys and values that it holds, while these go on to the next rank and those of the rank before come;
// what the rounds give is put together by its log-sum-exp. Backward, gradients of keys and values travel with them, and
// come home after a full turn.

#include <span>

#include "common/comm/communicator.h"
#include "common/graph/program.h"
#include "kernels/backend.h"

namespace tandem::runtime::detail {

// `views` by TensorId; `ring` is the context group, for memory of the device. The attention that the backend offers has
// to take pieces of rows.
void runRingAttention(const graph::Node& node, std::span<const kernels::TensorView> views, comm::Communicator& ring,
                      kernels::Backend& backend, kernels::Stream& stream);
void runRingAttentionBackward(const graph::Node& node, std::span<const kernels::TensorView> views,
                              comm::Communicator& ring, kernels::Backend& backend, kernels::Stream& stream);

}  // namespace tandem::runtime::detail
