// Micro batches recorded and replayed as CUDA graphs give the bits of those that are not, with exchanges in between.

#include <gtest/gtest.h>

#include <cmath>

#include "common/model/transformer.h"
#include "common/runtime/device_communicator.h"
#include "common/sharding/data_parallel.h"
#include "common/train/model_state.h"
#include "tests/common/train/small_world.h"

namespace tandem::train {
namespace {

constexpr std::int64_t length = 8;

struct CudaDevice {
  std::unique_ptr<kernels::Backend> backend = kernels::makeCudaBackend({});
  std::unique_ptr<kernels::Stream> stream = backend->makeStream();
  std::shared_ptr<runtime::Arena> arena = std::make_shared<runtime::Arena>(*backend);
  std::unique_ptr<comm::Communicator> exchange = runtime::makeNcclCommunicator(test::world(), *backend, *stream, false);

  Device device() const { return {*backend, *stream, arena, exchange.get()}; }
  std::vector<float> read(const void* from, std::int64_t count) const {
    std::vector<float> values(static_cast<std::size_t>(count));
    backend->copyToHost(values.data(), from, count * base::byteSize(base::DType::f32), *stream);
    stream->synchronize();
    return values;
  }
};

data::Batch makeBatch(std::int64_t rows, std::int64_t number) {
  data::Batch result(rows, length);
  for (std::int64_t i = 0; i < rows * length; ++i) {
    const auto at = static_cast<std::size_t>(i);
    result.tokens[at] = static_cast<std::int32_t>((number * 29 + test::world().rank() * 7 + i * 5) % 256);
    result.targets[at] = static_cast<std::int32_t>((number + i * 11) % 256);
    result.positions[at] = static_cast<std::int32_t>(i % length);
    result.documentStart[at] = 0;
  }
  result.targetCount = rows * length;
  return result;
}

// A program with an exchange after every few gradients: two micro batches a step, the second one with exchanges.
class Exchanging {
 public:
  explicit Exchanging(CudaDevice& cuda)
      : cuda_(cuda),
        program_(trainingProgram(tinyModel(), 1, length, base::DType::f32, graph::Recompute::nothing)),
        layout_(named(program_), test::world().size(), sharding::FlatLayout::Ownership::anywhere, 500),
        parameters_(layout_, *cuda.backend, *cuda.stream, base::DType::f32, runtime::ParameterStore::Gradients::held),
        exchange_(parameters_, *cuda.exchange),
        plain_(program_, *cuda.backend, *cuda.stream, cuda.arena),
        exchanging_(sharding::placeReduceScatters(program_, layout_), *cuda.backend, *cuda.stream, cuda.arena) {
    parameters_.bindTo(plain_);
    parameters_.bindTo(exchanging_);
    std::vector<float> weights(static_cast<std::size_t>(layout_.count()));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.1f * std::sin(static_cast<float>(i));
    cuda.backend->copyToDevice(parameters_.weights(), weights.data(), layout_.count() * 4, *cuda.stream);
    cuda.stream->synchronize();
  }

  // The gradients that this rank owns, summed over micro batches and ranks.
  std::vector<float> step(std::int64_t number, bool recorded) {
    const data::Batch batch = makeBatch(2, number);
    const float gradScale = 1.0f / 32;
    for (runtime::Executable* executable : {&plain_, &exchanging_}) {
      const bool first = executable == &plain_;
      setBatchInputs(*executable, batch, first ? 0 : 1);
      executable->setInput("gradScale", &gradScale);
      optim::GradientExchange* const exchange = first ? nullptr : &exchange_;
      if (recorded) {
        executable->replay(first, exchange);
      } else {
        executable->run(first, exchange);
      }
    }
    exchange_.finish();
    cuda_.stream->synchronize();
    std::vector<float> own;
    for (const sharding::OwnedRun& run : layout_.ownedRuns(test::world().rank())) {
      const auto values = cuda_.read(parameters_.gradients() + run.flatOffset, run.count);
      own.insert(own.end(), values.begin(), values.end());
    }
    return own;
  }

  const sharding::FlatLayout& layout() const { return layout_; }
  std::size_t recordings() const { return exchanging_.recordings(false); }

 private:
  static std::vector<sharding::FlatLayout::Named> named(const graph::Program& program) {
    std::vector<sharding::FlatLayout::Named> parameters;
    for (const graph::TensorId id : program.ofRole(graph::Role::parameter)) {
      parameters.push_back({program.tensor(id).name, program.tensor(id).shape});
    }
    return parameters;
  }

  CudaDevice& cuda_;
  graph::Program program_;
  sharding::FlatLayout layout_;
  runtime::ParameterStore parameters_;
  optim::GradientExchange exchange_;
  runtime::Executable plain_, exchanging_;
};

TEST(RecordedStep, isCutAtItsExchangesAndGivesTheSameGradients) {
  CudaDevice cuda;
  Exchanging plain(cuda), recorded(cuda);
  ASSERT_GT(plain.layout().buckets(), 2);
  for (std::int64_t number = 0; number < 5; ++number) {
    EXPECT_EQ(recorded.step(number, true), plain.step(number, false)) << "step " << number;
    // Runs first, records then.
    EXPECT_EQ(recorded.recordings() > 0, number >= 1);
  }
  EXPECT_GT(recorded.recordings(), 2u) << "one recording up to each exchange";
}

TEST(RecordedStep, trainsToTheSameWeightsThroughGrowingScratch) {
  auto train = [](bool recorded, std::size_t& recordings) {
    CudaDevice cuda;
    TrainOptions options;
    options.sequenceLength = length;
    options.batchTokens = 3 * length * test::world().size();
    options.microBatch = 1;
    options.cudaGraphs = recorded;
    const model::Configuration model = tinyModel();
    const BatchShape shape = shareOut(options, {.data = test::world().size()});
    TrainingStep step(model, options, shape, test::world(), cuda.device());
    initialise(model, 1, step.parameters(), step.optimizer(), cuda.device());
    std::vector<float> losses;
    for (std::int64_t number = 1; number <= 6; ++number) {
      losses.push_back(static_cast<float>(step.run(makeBatch(3, number), number, 1e-2, 0).loss));
      if (number != 4) continue;
      // Somebody else's larger operator moves the scratch that recordings borrow: they have to be made anew.
      runtime::Executable larger(trainingProgram(model, 16, length, base::DType::f32, graph::Recompute::nothing),
                                 *cuda.backend, *cuda.stream, cuda.arena);
      step.parameters().bindTo(larger);
      const data::Batch batch = makeBatch(16, 0);
      const float gradScale = 1;
      setBatchInputs(larger, batch, 0);
      larger.setInput("gradScale", &gradScale);
      larger.run();
    }
    recordings = step.executable().recordings(false);
    std::vector<float> weights = cuda.read(step.parameters().weights(), step.parameters().layout().count());
    losses.insert(losses.end(), weights.begin(), weights.end());
    return losses;
  };
  std::size_t none = 0, some = 0;
  const std::vector<float> plain = train(false, none);
  EXPECT_EQ(train(true, some), plain);
  EXPECT_EQ(none, 0u);
  EXPECT_GT(some, 0u);
}

}  // namespace
}  // namespace tandem::train
