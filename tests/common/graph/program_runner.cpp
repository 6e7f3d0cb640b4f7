#include "tests/common/graph/program_runner.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/base/random.h"
#include "common/graph/operators.h"

namespace tandem::graph::test {
namespace {

std::size_t bytesOf(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.shape.count() * base::byteSize(tensor.type));
}

// A NaN in float32 and in bfloat16.
void fillWithNan(void* memory, std::size_t bytes) { std::memset(memory, 0xff, bytes); }

void store(void* memory, DType type, const std::vector<float>& values) {
  if (type == DType::f32) {
    std::memcpy(memory, values.data(), values.size() * sizeof(float));
    return;
  }
  auto* target = static_cast<base::BFloat16*>(memory);
  for (std::size_t index = 0; index < values.size(); ++index) target[index] = base::BFloat16(values[index]);
}

bool names(const std::vector<TensorId>& ids, TensorId id) { return std::ranges::count(ids, id) > 0; }

}  // namespace

Values randomParameters(const Program& program, std::uint64_t seed) {
  Values values;
  std::vector<TensorId> ids = program.ofRole(Role::parameter);
  std::ranges::copy(program.ofRole(Role::frozen), std::back_inserter(ids));
  for (const TensorId id : ids) {
    const Tensor& tensor = program.tensor(id);
    base::RandomStream random(seed, static_cast<std::uint64_t>(id));
    const bool scalesNorm = tensor.shape.rank() == 1 && tensor.name.ends_with("weight");
    auto& data = values[tensor.name];
    data.resize(static_cast<std::size_t>(tensor.shape.count()));
    for (float& value : data) value = (scalesNorm ? 1.0f : 0.0f) + 0.4f * random.nextNormal();
  }
  return values;
}

Batch randomBatch(const Program& program, std::uint64_t seed) {
  base::RandomStream random(seed, 0);
  const Shape shape = program.tensor(program.find("tokens")).shape;
  const auto vocabulary = static_cast<std::uint64_t>(program.tensor(program.find("embedding.weight")).shape[0]);
  Batch batch;
  for (std::int64_t row = 0; row < shape[0]; ++row) {
    for (int word = 0; word < 2; ++word) {
      batch["dropout_keys"].push_back(static_cast<std::int32_t>(random.nextBelow(1 << 30)));
    }
    const auto second = static_cast<std::int32_t>(1 + row % (shape[1] - 1));  // where the second document begins
    for (std::int32_t time = 0; time < shape[1]; ++time) {
      const std::int32_t start = time < second ? 0 : second;
      batch["tokens"].push_back(static_cast<std::int32_t>(random.nextBelow(vocabulary)));
      batch["positions"].push_back(time - start);
      batch["documentStart"].push_back(start);
      batch["targets"].push_back(time + 1 == second ? -1 : static_cast<std::int32_t>(random.nextBelow(vocabulary)));
    }
  }
  return batch;
}

ProgramRunner::ProgramRunner(const Program& program, bool poison)
    : parameters(randomParameters(program)),
      program_(program),
      plan_(planMemory(program)),
      poison_(poison),
      arena_(static_cast<std::size_t>(plan_.arenaBytes)),
      backend_(kernels::makeReferenceBackend()),
      stream_(backend_->makeStream()) {
  check(program_);
  fillWithNan(arena_.data(), arena_.size());
  for (std::size_t id = 0; id < program_.tensors().size(); ++id) {
    const Tensor& tensor = program_.tensors()[id];
    if (tensor.role == Role::activation) continue;
    auto& memory = outside_[static_cast<TensorId>(id)];
    memory.resize(bytesOf(tensor));
    fillWithNan(memory.data(), memory.size());
  }
}

kernels::TensorView ProgramRunner::viewOf(TensorId id) {
  const Tensor& tensor = program_.tensor(id);
  const auto outside = outside_.find(id);
  if (outside != outside_.end()) return {outside->second.data(), tensor.type, tensor.shape};
  const std::int64_t offset = plan_.offsets[static_cast<std::size_t>(id)];
  return {offset < 0 ? nullptr : arena_.data() + offset, tensor.type, tensor.shape};
}

std::vector<float> ProgramRunner::run(const Batch& batch, bool firstMicroBatch) {
  std::vector<kernels::TensorView> views;
  for (std::size_t id = 0; id < program_.tensors().size(); ++id) {
    const Tensor& tensor = program_.tensors()[id];
    views.push_back(viewOf(static_cast<TensorId>(id)));
    void* memory = views.back().data;
    if (tensor.role == Role::parameter || tensor.role == Role::frozen)
      store(memory, tensor.type, parameters.at(tensor.name));
    if (tensor.role != Role::input) continue;
    if (tensor.name == "gradScale") {
      std::memcpy(memory, &gradScale, sizeof gradScale);
    } else {
      std::memcpy(memory, batch.at(tensor.name).data(), bytesOf(tensor));
    }
  }
  for (std::size_t index = 0; index < program_.nodes().size(); ++index) {
    if (poison_) poison(index, true);
    runNode(program_, program_.nodes()[index], views, firstMicroBatch, *backend_, *stream_);
    if (poison_) poison(index, false);
  }
  const auto& losses = outside_.at(program_.find("losses"));
  std::vector<float> result(losses.size() / sizeof(float));
  std::memcpy(result.data(), losses.data(), losses.size());
  return result;
}

double ProgramRunner::loss(const Batch& batch) {
  const std::vector<float> losses = run(batch);
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

Values ProgramRunner::gradients() const {
  Values values;
  for (const TensorId id : program_.ofRole(Role::gradient)) {
    const auto& memory = outside_.at(id);
    auto& data = values[program_.tensor(id).name];
    data.resize(memory.size() / sizeof(float));
    std::memcpy(data.data(), memory.data(), memory.size());
  }
  return values;
}

// Before the node: what it writes and does not share with what it reads. After it: what no later node reads.
void ProgramRunner::poison(std::size_t index, bool before) {
  const Node& node = program_.nodes()[index];
  const auto offset = [&](TensorId id) { return plan_.offsets[static_cast<std::size_t>(id)]; };
  const auto fill = [&](TensorId id) { fillWithNan(arena_.data() + offset(id), bytesOf(program_.tensor(id))); };
  const auto isActivation = [&](TensorId id) { return id != none && program_.tensor(id).role == Role::activation; };
  if (before) {
    for (const TensorId id : node.outputs) {
      if (!isActivation(id)) continue;
      const bool inPlace = std::ranges::any_of(
          node.inputs, [&](TensorId input) { return isActivation(input) && offset(input) == offset(id); });
      if (!inPlace) fill(id);
    }
    return;
  }
  for (const TensorId id : node.inputs) {
    if (!isActivation(id)) continue;
    bool readLater = false;
    for (std::size_t later = index + 1; later < program_.nodes().size(); ++later) {
      readLater = readLater || names(program_.nodes()[later].inputs, id);
    }
    const bool overwritten = std::ranges::any_of(
        node.outputs, [&](TensorId output) { return isActivation(output) && offset(output) == offset(id); });
    if (!readLater && !overwritten) fill(id);
  }
}

}  // namespace tandem::graph::test
