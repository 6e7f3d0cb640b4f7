#include "common/runtime/activation_exchange.h"

#include "common/runtime/detail/ring_attention.h"

#include <vector>

namespace tandem::runtime {
namespace {

comm::Buffer bufferOf(const kernels::TensorView& view) { return {view.data, view.type, view.shape.count()}; }

// Elements of each rank's rows, of a tensor that has the rows of all.
std::vector<std::int64_t> countsOf(const graph::ExchangeAttributes& exchange, const kernels::TensorView& whole) {
  std::int64_t rows = 0;
  for (const std::int64_t each : exchange.rows) rows += each;
  std::vector<std::int64_t> counts;
  for (const std::int64_t each : exchange.rows) counts.push_back(whole.shape.count() / rows * each);
  return counts;
}

}  // namespace

void ActivationExchange::run(const graph::Node& node, std::span<const kernels::TensorView> views,
                             kernels::Backend& backend, kernels::Stream& stream) {
  switch (node.op) {
    case graph::Operator::send:
    case graph::Operator::receive:
      return exchangeMessage(node, views);
    case graph::Operator::ringAttention:
      return detail::runRingAttention(node, views, groups_.context(), backend, stream);
    case graph::Operator::ringAttentionBackward:
      return detail::runRingAttentionBackward(node, views, groups_.context(), backend, stream);
    default:
      return exchangeRows(node, views);
  }
}

void ActivationExchange::exchangeMessage(const graph::Node& node, std::span<const kernels::TensorView> views) {
  constexpr int tag = 0;
  const auto& message = std::get<graph::MessageAttributes>(node.attributes);
  const bool isSentOn = (node.op == graph::Operator::send) == message.isForward;
  comm::Communicator& stages = groups_.link(isSentOn ? groups_.own().pipeline : message.peer, message.isForward);
  if (node.op == graph::Operator::send) {
    const kernels::TensorView& view = views[static_cast<std::size_t>(node.inputs[0])];
    sends_.push_back(stages.startSend(bufferOf(view), message.peer, tag));
  } else {
    stages.receive(bufferOf(views[static_cast<std::size_t>(node.outputs[0])]), message.peer, tag);
  }
}

void ActivationExchange::waitForSends() {
  for (const auto& send : sends_) send->wait();
  sends_.clear();
}

void ActivationExchange::exchangeRows(const graph::Node& node, std::span<const kernels::TensorView> views) {
  const auto& exchange = std::get<graph::ExchangeAttributes>(node.attributes);
  const kernels::TensorView& input = views[static_cast<std::size_t>(node.inputs[0])];
  const kernels::TensorView& output = views[static_cast<std::size_t>(node.outputs[0])];
  if (node.op == graph::Operator::gatherRows) {
    groups_.tensor().allGather(bufferOf(input), bufferOf(output), countsOf(exchange, output));
  } else {
    groups_.tensor().reduceScatter(bufferOf(input), bufferOf(output), countsOf(exchange, input));
  }
}

}  // namespace tandem::runtime
