#include "kernels/cuda/cudnn/attention_graph.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB  // it would carry graphs over to files
#include <cudnn_frontend.h>

#include <exception>
#include <unordered_map>

namespace tandem::kernels::cuda {

namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<Tensor_attributes>;

constexpr int statisticsOffset = statistics;  // tensors before it have one offset each, by their numbers

// Axes are [sequence, head, token, element] to cuDNN, whatever the order in memory.
class GraphWriter {
 public:
  explicit GraphWriter(const AttentionProblem& problem) : problem_(problem) {
    graph_->set_io_data_type(problem.type == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void writeForward() {
    auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    mask(attributes);
    auto [o, stats] = graph_->sdpa(heads(query, problem_.heads), heads(key, problem_.kvHeads),
                                   heads(value, problem_.kvHeads), attributes);
    describeHeads(*o, output, problem_.heads).set_output(true);
    describeStatistics(*stats).set_output(true);
  }

  void writeBackward() {
    auto attributes =
        fe::graph::SDPA_backward_attributes().set_name("attention_backward").set_deterministic_algorithm(true);
    mask(attributes);
    if (problem_.isPacked) {
      attributes.set_max_total_seq_len_q(problem_.tokens).set_max_total_seq_len_kv(problem_.tokens);
    }
    auto stats = graph_->tensor(Tensor_attributes());
    describeStatistics(*stats);
    auto [q, k, v] = graph_->sdpa_backward(heads(query, problem_.heads), heads(key, problem_.kvHeads),
                                           heads(value, problem_.kvHeads), heads(output, problem_.heads),
                                           heads(gradOutput, problem_.heads), stats, attributes);
    describeHeads(*q, gradQuery, problem_.heads).set_output(true);
    describeHeads(*k, gradKey, problem_.kvHeads).set_output(true);
    describeHeads(*v, gradValue, problem_.kvHeads).set_output(true);
  }

  std::shared_ptr<fe::graph::Graph> graph() const { return graph_; }

 private:
  // Token t sees the tokens from t - window + 1 to t of its own sequence.
  template <class Attributes>
  void mask(Attributes& attributes) {
    attributes.set_attn_scale(problem_.scale)
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (problem_.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(problem_.window));
    if (problem_.isPacked) {
      attributes.set_padding_mask(true)
          .set_seq_len_q(table(lengthsOfQueries, problem_.sequences))
          .set_seq_len_kv(table(lengthsOfKeys, problem_.sequences));
    }
  }

  TensorPointer table(std::int64_t number, std::int64_t count) {
    return graph_->tensor(Tensor_attributes()
                              .set_uid(number)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
  }

  TensorPointer heads(AttentionTensor number, std::int64_t count) {
    auto tensor = graph_->tensor(Tensor_attributes());
    describeHeads(*tensor, number, count);
    return tensor;
  }

  Tensor_attributes& describeHeads(Tensor_attributes& tensor, AttentionTensor number, std::int64_t count) {
    const HeadStrides& strides = problem_.strides[static_cast<std::size_t>(number)];
    tensor.set_uid(number)
        .set_dim({problem_.sequences, count, problem_.time, problem_.headSize})
        .set_stride(
            {problem_.isPacked ? problem_.time * strides.token : strides.sequence, strides.head, strides.token, 1});
    if (problem_.isPacked) tensor.set_ragged_offset(table(firstOffset + number, problem_.sequences + 1));
    return tensor;
  }

  Tensor_attributes& describeStatistics(Tensor_attributes& tensor) {
    const std::int64_t heads = problem_.heads, time = problem_.time;
    tensor.set_uid(statistics).set_dim({problem_.sequences, heads, time, 1}).set_data_type(fe::DataType_t::FLOAT);
    if (problem_.isPacked) {
      tensor.set_stride({heads * time, 1, heads, 1})
          .set_ragged_offset(table(firstOffset + statisticsOffset, problem_.sequences + 1));
    } else {
      tensor.set_stride({heads * time, time, 1, 1});
    }
    return tensor;
  }

  const AttentionProblem& problem_;
  std::shared_ptr<fe::graph::Graph> graph_ = std::make_shared<fe::graph::Graph>();
};

class FrontendGraph : public AttentionGraph {
 public:
  FrontendGraph(std::shared_ptr<fe::graph::Graph> graph, std::int64_t workspaceBytes)
      : graph_(std::move(graph)), workspaceBytes_(workspaceBytes) {}

  std::int64_t workspaceBytes() const override { return workspaceBytes_; }

  std::string execute(cudnnHandle_t handle, const std::map<std::int64_t, void*>& tensors, void* workspace) override {
    std::unordered_map<std::int64_t, void*> pack(tensors.begin(), tensors.end());
    try {
      fe::error_t result = graph_->execute(handle, pack, workspace);
      return result.is_good() ? "" : "executing its plan: " + result.get_message();
    } catch (const std::exception& error) {
      return std::string("executing its plan: ") + error.what();
    }
  }

 private:
  std::shared_ptr<fe::graph::Graph> graph_;
  std::int64_t workspaceBytes_;
};

std::shared_ptr<fe::graph::Graph> graphOf(const AttentionProblem& problem) {
  GraphWriter writer(problem);
  if (problem.isBackward) {
    writer.writeBackward();
  } else {
    writer.writeForward();
  }
  return writer.graph();
}

// On one line, without the names of unnamed nodes.
std::string lineOf(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "; ";
    } else if (c != '_' || !line.ends_with("_")) {
      line += c;
    }
  }
  while (line.ends_with("; ")) line.resize(line.size() - 2);
  return line;
}

std::string refused(const char* step, fe::error_t result) {
  return result.is_good() ? "" : std::string(step) + ": " + lineOf(result.get_message());
}

// cuDNN's first refusal with the step that it came from. `build` makes its graph of ours.
template <class Build>
std::string askForSupport(fe::graph::Graph& graph, const Build& build) {
  std::string refusal = refused("checking the graph", graph.validate());
  if (refusal.empty()) refusal = refused("building the graph", build());
  if (refusal.empty()) refusal = refused("looking for a plan", graph.create_execution_plans({fe::HeurMode_t::A}));
  if (refusal.empty()) refusal = refused("asking for support", graph.check_support());
  return refusal;
}

}  // namespace

BuiltGraph buildAttentionGraph(const AttentionProblem& problem, cudnnHandle_t handle) {
  try {
    auto graph = graphOf(problem);
    std::int64_t workspaceBytes = 0;
    std::string refusal = askForSupport(*graph, [&] { return graph->build_operation_graph(handle); });
    if (refusal.empty()) refusal = refused("building a plan", graph->build_plans());
    if (refusal.empty()) refusal = refused("asking for the workspace", graph->get_workspace_size(workspaceBytes));
    if (!refusal.empty()) return {nullptr, refusal};
    return {std::make_unique<FrontendGraph>(std::move(graph), workspaceBytes), ""};
  } catch (const std::exception& error) {  // cudnn-frontend throws where a symbol is missing
    return {nullptr, error.what()};
  }
}

std::string whyNoPlanFor(const AttentionProblem& problem, const std::string& device) {
  auto properties = std::make_shared<fe::DeviceProperties>();
  std::string refusal =
      refused("reading the description of a device", properties->deserialize({device.begin(), device.end()}));
  if (!refusal.empty()) return refusal;
  auto graph = graphOf(problem);
  graph->set_device_properties(properties);
  return askForSupport(*graph, [&] { return graph->build_operation_graph(); });
}

}  // namespace tandem::kernels::cuda
