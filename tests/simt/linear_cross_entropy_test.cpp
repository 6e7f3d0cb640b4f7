// LinearCrossEntropy over chunks as small as a row, which a call of ordinary size never has, against the reference.
#include "kernels/cuda/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/base/random.h"
#include "kernels/cuda/matrix_product.h"

namespace tandem::kernels::cuda {

namespace {

constexpr std::int64_t rows = 11, width = 12, vocabulary = 37;

// float32 memory of a device, or of the host for the reference.
class Memory {
 public:
  Memory(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}
  ~Memory() {
    for (void* memory : owned_) backend_.release(memory);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  TensorView place(DType type, const Shape& shape, const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    owned_.push_back(backend_.allocate(bytes));
    backend_.copyToDevice(owned_.back(), values.data(), bytes, stream_);
    return TensorView(owned_.back(), type, shape);
  }
  std::vector<float> read(const TensorView& view) {
    std::vector<float> values(static_cast<std::size_t>(view.shape.count()));
    backend_.copyToHost(values.data(), view.data, view.shape.count() * 4, stream_);
    stream_.synchronize();
    return values;
  }

 private:
  Backend& backend_;
  Stream& stream_;
  std::vector<void*> owned_;
};

std::vector<float> normal(std::int64_t count, std::uint64_t seed) {
  base::RandomStream random(seed, 0);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = random.nextNormal();
  return values;
}

LinearCrossEntropy callIn(Memory& memory, bool accumulates) {
  std::vector<std::int32_t> targets;
  for (std::int32_t row = 0; row < rows; ++row)
    targets.push_back(row % 4 == 3 ? -1 : static_cast<std::int32_t>(row * 7 % vocabulary));
  const TensorView scale = memory.place(DType::f32, Shape{rows}, normal(rows, 6));
  return {.input = memory.place(DType::f32, Shape{rows, width}, normal(rows * width, 1)),
          .weight = memory.place(DType::f32, Shape{vocabulary, width}, normal(vocabulary * width, 2)),
          .targets = memory.place(DType::i32, Shape{rows}, targets),
          .gradScale = scale,
          .losses = memory.place(DType::f32, Shape{rows}, normal(rows, 3)),
          .gradInput = memory.place(DType::f32, Shape{rows, width}, normal(rows * width, 4)),
          .gradWeight = memory.place(DType::f32, Shape{vocabulary, width}, normal(vocabulary * width, 5)),
          .accumulateWeight = accumulates};
}

void expectSame(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 2e-5 * (1 + std::abs(want[i]))) << what << i;
}

TEST(LinearCrossEntropyInChunks, givesTheSameWhateverTheirSize) {
  const auto backend = makeCudaBackend({}), reference = makeReferenceBackend();
  const auto stream = backend->makeStream(), referenceStream = reference->makeStream();
  const DeviceProperties device = useDevice(0);
  const auto products = makeMatrixProduct({});
  for (const bool accumulates : {false, true}) {
    Memory referenceMemory(*reference, *referenceStream);
    const LinearCrossEntropy want = callIn(referenceMemory, accumulates);
    reference->run(want, *referenceStream);
    for (const std::int64_t chunkRows : {1, 3, 4, 10, 11, 200}) {
      SCOPED_TRACE(chunkRows);
      Memory memory(*backend, *stream);
      const LinearCrossEntropy got = callIn(memory, accumulates);
      Context context;
      context.stream = static_cast<cudaStream_t>(stream->handle());
      context.device = &device;
      context.matrixProduct = products.get();
      runInChunks(got, chunkRows, context);
      expectSame(memory.read(got.losses), referenceMemory.read(want.losses), "loss ");
      expectSame(memory.read(got.gradInput), referenceMemory.read(want.gradInput), "gradInput ");
      expectSame(memory.read(got.gradWeight), referenceMemory.read(want.gradWeight), "gradWeight ");
    }
  }
}

// exp(-infinity - maximum) is 0, unless the maximum was -infinity so far.
TEST(LinearCrossEntropyInChunks, countsALogitOfMinusInfinityAsNothing) {
  const auto backend = makeCudaBackend({}), reference = makeReferenceBackend();
  std::vector<float> losses[2];
  for (Backend* tested : {backend.get(), reference.get()}) {
    const auto stream = tested->makeStream();
    Memory memory(*tested, *stream);
    LinearCrossEntropy call = callIn(memory, false);
    std::vector<float> weight = normal(vocabulary * width, 2);
    for (const std::int64_t word : {std::int64_t{6}, vocabulary - 1})
      weight[static_cast<std::size_t>(word * width)] = -INFINITY;
    call.input = memory.place(DType::f32, Shape{rows, width}, std::vector<float>(rows * width, 1.0f));
    call.weight = memory.place(DType::f32, Shape{vocabulary, width}, weight);
    call.targets = memory.place(DType::i32, Shape{rows}, std::vector<std::int32_t>(rows, 1));
    call.gradInput = call.gradWeight = {};
    tested->run(call, *stream);
    losses[tested == reference.get()] = memory.read(call.losses);
  }
  for (const float loss : losses[1]) ASSERT_TRUE(std::isfinite(loss));
  expectSame(losses[0], losses[1], "loss ");
}

// A target behind the vocabulary would read beside the row; the loss has to betray it.
TEST(LinearCrossEntropyInChunks, hasNoLossForATargetThatIsNoWord) {
  const auto backend = makeCudaBackend({});
  const auto stream = backend->makeStream();
  Memory memory(*backend, *stream);
  LinearCrossEntropy call = callIn(memory, false);
  std::vector<std::int32_t> targets(rows, 1);
  targets[2] = vocabulary;
  call.targets = memory.place(DType::i32, Shape{rows}, targets);
  backend->run(call, *stream);
  const std::vector<float> losses = memory.read(call.losses);
  for (std::size_t row = 0; row < losses.size(); ++row) EXPECT_EQ(std::isnan(losses[row]), row == 2) << row;
}

}  // namespace

}  // namespace tandem::kernels::cuda
