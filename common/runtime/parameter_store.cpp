#include "common/runtime/parameter_store.h"

namespace tandem::runtime {
namespace {

void fillWithZeros(kernels::Backend& backend, kernels::Stream& stream, void* data, base::DType type,
                   std::int64_t count) {
  backend.run(kernels::Fill{.target = kernels::TensorView(data, type, {count}), .value = 0}, stream);
}

}  // namespace

ParameterStore::ParameterStore(const sharding::FlatLayout& layout, kernels::Backend& backend, kernels::Stream& stream,
                               base::DType storage, Gradients gradients)
    : layout_(layout), storage_(storage) {
  weights_ = std::make_unique<DeviceMemory>(backend, layout.count() * base::byteSize(storage));
  fillWithZeros(backend, stream, weights_->data(), storage, layout.count());
  if (gradients == Gradients::none) return;
  gradients_ = std::make_unique<DeviceMemory>(backend, layout.count() * base::byteSize(base::DType::f32));
  fillWithZeros(backend, stream, gradients_->data(), base::DType::f32, layout.count());
}

void ParameterStore::bindTo(Executable& executable) const {
  for (const sharding::FlatParameter& parameter : layout_.parameters()) {
    if (executable.has(parameter.name)) executable.bind(parameter.name, weightAt(parameter.offset));
    const std::string gradient = graph::gradientName(parameter.name);
    if (gradients_ && executable.has(gradient)) executable.bind(gradient, gradients() + parameter.offset);
  }
  if (matrices_) matrices_->bindTo(executable);
}

sharding::FlatLayout layoutOf(std::span<const sharding::FlatLayout::Named> parameters, int ranks,
                              sharding::FlatLayout::Ownership ownership, std::int64_t bucketElements) {
  return sharding::FlatLayout(parameters, ranks, ownership, bucketElements);
}

sharding::FlatLayout layoutOf(const graph::Program& program, int ranks, sharding::FlatLayout::Ownership ownership,
                              const std::map<std::string, sharding::Part>& parts, graph::Role role,
                              std::int64_t bucketElements) {
  std::vector<sharding::FlatLayout::Named> parameters;
  for (const graph::TensorId id : program.ofRole(role)) {
    const graph::Tensor& tensor = program.tensor(id);
    parameters.push_back({tensor.name, tensor.shape});
    const auto part = parts.find(tensor.name);
    if (part != parts.end()) parameters.back().part = part->second;
  }
  return layoutOf(parameters, ranks, ownership, bucketElements);
}

}  // namespace tandem::runtime
