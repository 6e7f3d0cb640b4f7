#include "common/runtime/executable.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "common/base/error.h"
#include "common/graph/operators.h"

namespace tandem::runtime {
namespace {

using graph::Role;

std::int64_t alignedBytes(const graph::Tensor& tensor) {
  return (tensor.shape.count() * base::byteSize(tensor.type) + 63) / 64 * 64;
}

bool livesWithExecutable(const graph::Tensor& tensor) {
  return tensor.role == Role::input || tensor.role == Role::output;
}

bool isExchange(const graph::Node& node) {
  return graph::exchangesParameters(node.op) || graph::exchangesActivations(node.op);
}

}  // namespace

DeviceMemory::DeviceMemory(kernels::Backend& backend, std::int64_t bytes, Place place)
    : backend_(backend), place_(place), bytes_(bytes) {
  const std::int64_t taken = std::max<std::int64_t>(bytes, 64);
  data_ = static_cast<std::byte*>(place == Place::device ? backend.allocate(taken) : backend.allocateStaging(taken));
}

DeviceMemory::~DeviceMemory() { place_ == Place::device ? backend_.release(data_) : backend_.releaseStaging(data_); }

void Arena::reserve(std::int64_t bytes) {
  if (bytes <= this->bytes() && memory_) return;
  memory_.reset();  // before the new block: both at once may not fit
  memory_ = std::make_unique<DeviceMemory>(backend_, bytes);
}

std::string Profile::text() const {
  std::vector<std::size_t> order;
  double total = 0;
  for (std::size_t op = 0; op < entries.size(); ++op) {
    if (entries[op].calls > 0) order.push_back(op);
    total += entries[op].seconds;
  }
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return entries[a].seconds > entries[b].seconds; });
  std::string text = "operator                 calls    seconds   share\n";
  for (const std::size_t op : order) {
    char line[128];
    std::snprintf(line, sizeof line, "%-22s %7lld %10.3f %6.1f %%\n", graph::name(static_cast<graph::Operator>(op)),
                  static_cast<long long>(entries[op].calls), entries[op].seconds, 100 * entries[op].seconds / total);
    text += line;
  }
  return text;
}

Executable::Executable(graph::Program program, kernels::Backend& backend, kernels::Stream& stream,
                       std::shared_ptr<Arena> arena)
    : program_(std::move(program)),
      plan_(graph::planMemory(program_)),
      backend_(backend),
      stream_(stream),
      arena_(std::move(arena)) {
  graph::check(program_);
  const auto end = std::ranges::find_if(program_.nodes(), graph::endsForwardPass);
  forwardNodes_ = static_cast<std::size_t>(end - program_.nodes().begin());
  if (end != program_.nodes().end()) ++forwardNodes_;
  arena_->reserve(plan_.arenaBytes);
  std::int64_t bytes = 0;
  for (const graph::Tensor& tensor : program_.tensors()) {
    if (livesWithExecutable(tensor)) bytes += alignedBytes(tensor);
  }
  inputsAndOutputs_ = std::make_unique<DeviceMemory>(backend_, bytes);
  std::int64_t offset = 0;
  for (const graph::Tensor& tensor : program_.tensors()) {
    void* memory = nullptr;
    if (tensor.role == Role::gradient && tensor.partOf != graph::none) keepsGradients_ = false;
    if (livesWithExecutable(tensor)) {
      memory = inputsAndOutputs_->data() + offset;
      offset += alignedBytes(tensor);
    }
    views_.emplace_back(memory, tensor.type, tensor.shape);
  }
}

graph::TensorId Executable::need(const std::string& tensor) const {
  const graph::TensorId id = program_.find(tensor);
  TANDEM_ASSERT(id != graph::none, "the program has no tensor '" + tensor + "'");
  return id;
}

void Executable::bind(const std::string& tensor, void* memory) {
  const graph::TensorId id = need(tensor);
  const Role role = program_.tensor(id).role;
  TANDEM_ASSERT(role == Role::parameter || role == Role::frozen || role == Role::gradient || role == Role::state,
                "'" + tensor + "' is not bound");
  views_[static_cast<std::size_t>(id)].data = memory;
  forgetRecordings();
}

void Executable::setInput(const std::string& tensor, const void* source) {
  const kernels::TensorView& view = views_[static_cast<std::size_t>(need(tensor))];
  backend_.copyToDevice(view.data, source, view.shape.count() * base::byteSize(view.type), stream_);
}

void Executable::readOutput(const std::string& tensor, void* target) {
  const kernels::TensorView& view = views_[static_cast<std::size_t>(need(tensor))];
  backend_.copyToHost(target, view.data, view.shape.count() * base::byteSize(view.type), stream_);
  stream_.synchronize();
}

std::vector<float> Executable::readFloats(const std::string& tensor) {
  const kernels::TensorView& view = views_[static_cast<std::size_t>(need(tensor))];
  const auto count = static_cast<std::size_t>(view.shape.count());
  std::vector<float> values(count);
  const auto widen = [&](auto kind) {
    std::vector<decltype(kind)> low(count);
    readOutput(tensor, low.data());
    std::transform(low.begin(), low.end(), values.begin(), [](auto value) { return static_cast<float>(value); });
  };
  if (view.type == base::DType::f32) {
    readOutput(tensor, values.data());
  } else if (view.type == base::DType::bf16) {
    widen(base::BFloat16());
  } else {
    TANDEM_ASSERT(view.type == base::DType::f16, "'" + tensor + "' holds no floating-point numbers");
    widen(base::Float16());
  }
  return values;
}

void* Executable::outputMemory(const std::string& tensor) const {
  return views_[static_cast<std::size_t>(need(tensor))].data;
}

void Executable::placeActivations() {
  for (std::size_t id = 0; id < views_.size(); ++id) {
    if (plan_.offsets[id] >= 0) views_[id].data = arena_->data() + plan_.offsets[id];
  }
  placedAt_ = arena_->data();
  forgetRecordings();
}

void Executable::forgetRecordings() {
  first_.clear();
  later_.clear();
}

// None where the backend records nothing.
std::vector<Executable::Piece> Executable::record(bool firstMicroBatch) {
  const std::vector<graph::Node>& nodes = program_.nodes();
  std::vector<Piece> pieces;
  for (std::size_t begin = 0; begin < nodes.size();) {
    std::size_t end = begin;
    while (end < nodes.size() && !isExchange(nodes[end])) ++end;
    if (end > begin) {
      auto recording = backend_.record(stream_, [&] {
        for (std::size_t i = begin; i < end; ++i) runOne(nodes[i], firstMicroBatch, nullptr);
      });
      if (!recording) return {};
      pieces.push_back({begin, end, std::move(recording)});
    }
    begin = end + 1;
  }
  return pieces;
}

void Executable::exchangeBetween(std::size_t begin, std::size_t end, Collectives* collectives) {
  for (std::size_t i = begin; i < end; ++i) runOne(program_.nodes()[i], false, collectives);
}

void Executable::replay(bool firstMicroBatch, Collectives* collectives) {
  if (placedAt_ != arena_->data()) placeActivations();
  Recorded& recorded = (firstMicroBatch ? first_ : later_)[documents_];
  for (const Piece& piece : recorded.pieces) {
    if (piece.recording->isValid()) continue;
    recorded = {};
    break;
  }
  if (recorded.hasRun && recorded.pieces.empty() && profile_ == nullptr) recorded.pieces = record(firstMicroBatch);
  if (recorded.pieces.empty()) {
    run(firstMicroBatch, collectives);
    recorded.hasRun = true;
    return;
  }
  std::size_t next = 0;
  for (const Piece& piece : recorded.pieces) {
    exchangeBetween(next, piece.begin, collectives);
    piece.recording->enqueue();
    progress(collectives);
    next = piece.end;
  }
  exchangeBetween(next, program_.nodes().size(), collectives);
}

void Executable::run(bool firstMicroBatch, Collectives* collectives) {
  runNodes(0, program_.nodes().size(), firstMicroBatch, collectives);
}

void Executable::runForward(bool firstMicroBatch, Collectives* collectives) {
  runNodes(0, forwardNodes_, firstMicroBatch, collectives);
}

void Executable::runBackward(bool firstMicroBatch, Collectives* collectives) {
  runNodes(forwardNodes_, program_.nodes().size(), firstMicroBatch, collectives);
}

void Executable::runNodes(std::size_t begin, std::size_t end, bool firstMicroBatch, Collectives* collectives) {
  if (placedAt_ != arena_->data()) placeActivations();
  for (std::size_t index = begin; index < end; ++index) {
    const graph::Node& node = program_.nodes()[index];
    if (profile_ == nullptr) {
      runOne(node, firstMicroBatch, collectives);
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    runOne(node, firstMicroBatch, collectives);
    stream_.synchronize();
    Profile::Entry& entry = profile_->entries[static_cast<std::size_t>(node.op)];
    entry.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++entry.calls;
  }
}

void Executable::runOne(const graph::Node& node, bool firstMicroBatch, Collectives* collectives) {
  if (graph::exchangesParameters(node.op)) {
    exchangeParameters(node, collectives);
  } else if (graph::exchangesActivations(node.op)) {
    TANDEM_ASSERT(exchange_ != nullptr, "a program of one rank of several was run without exchanges");
    exchange_->run(node, views_, backend_, stream_);
  } else {
    graph::runNode(program_, node, views_, firstMicroBatch || !keepsGradients_, backend_, stream_, documents_);
    progress(collectives);
  }
}

void Executable::exchangeParameters(const graph::Node& node, Collectives* collectives) {
  const std::int32_t bucket = std::get<graph::CollectiveAttributes>(node.attributes).bucket;
  const auto memory = [&](const std::vector<graph::TensorId>& operands) -> void* {
    return operands[0] == graph::none ? nullptr : views_[static_cast<std::size_t>(operands[0])].data;
  };
  switch (node.op) {
    case graph::Operator::gatherWeights:
      TANDEM_ASSERT(weights_ != nullptr, "a program of shared-out weights was run without the others'");
      return weights_->gather(bucket, memory(node.outputs));
    case graph::Operator::waitForWeights:
      return weights_->wait(bucket);
    case graph::Operator::waitForSums:
      if (collectives != nullptr) collectives->waitForSums(bucket);
      return;
    default:
      if (collectives != nullptr) collectives->reduceScatter(bucket, memory(node.inputs));
  }
}

void Executable::progress(Collectives* collectives) {
  if (collectives != nullptr) collectives->progress();
  if (weights_ != nullptr) weights_->progress();
}

}  // namespace tandem::runtime
