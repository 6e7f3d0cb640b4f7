// What finetuning begins with: a matrix that is not changed has the norms that it has.

#include <gtest/gtest.h>

#include <vector>

#include "common/base/random.h"
#include "tests/kernels/operators/backends.h"

namespace tandem::kernels::test {

namespace {

// Numbers in the memory of a backend.
class Floats {
 public:
  Floats(Backend& backend, Stream& stream, const Shape& shape, const std::vector<float>& values = {})
      : backend_(backend), shape_(shape), data_(backend.allocate(bytes())) {
    if (!values.empty()) backend.copyToDevice(data_, values.data(), bytes(), stream);
    stream.synchronize();
  }
  ~Floats() { backend_.release(data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  TensorView view() const { return {data_, DType::f32, shape_}; }
  std::vector<float> read(Stream& stream) const {
    std::vector<float> values(static_cast<std::size_t>(shape_.count()));
    backend_.copyToHost(values.data(), data_, bytes(), stream);
    stream.synchronize();
    return values;
  }

 private:
  std::int64_t bytes() const { return shape_.count() * static_cast<std::int64_t>(sizeof(float)); }

  Backend& backend_;
  Shape shape_;
  void* data_;
};

TEST(RowNorms, ofAMatrixThatIsNotChangedAreTheSameBits) {
  constexpr std::int64_t rows = 40, width = 1003;
  base::RandomStream random(5, 0);
  std::vector<float> numbers(rows * width);
  for (float& number : numbers) number = random.nextNormal();
  for (const BackendChoice& choice : backendChoices()) {
    Backend& backend = backendFor(choice);
    const auto stream = backend.makeStream();
    const Floats matrix(backend, *stream, {rows, width}, numbers);
    const Floats change(backend, *stream, {rows, width}, std::vector<float>(rows * width));
    const Floats norms(backend, *stream, {rows}), changedNorms(backend, *stream, {rows});
    backend.run(RowNorms{.matrix = matrix.view(),
                         .change = change.view(),
                         .factor = 3,
                         .norms = norms.view(),
                         .changedNorms = changedNorms.view()},
                *stream);
    const std::vector<float> found = norms.read(*stream);
    EXPECT_GT(found.front(), 1) << choice.name;
    EXPECT_EQ(found, changedNorms.read(*stream)) << choice.name;
  }
}

}  // namespace

}  // namespace tandem::kernels::test
