// A decode program against the training program: token by token over a cache, or all at once.

#include "common/graph/operators.h"
#include "tests/common/graph/expectations.h"

#include "common/base/random.h"

namespace tandem::graph::test {
namespace {

constexpr std::int64_t batch = 2, time = 7, heads = 4, kvHeads = 2, headSize = 4;
constexpr std::int64_t width = (heads + 2 * kvHeads) * headSize, outputWidth = heads * headSize;

struct Attended {
  std::vector<float> output = std::vector<float>(static_cast<std::size_t>(batch * time * outputWidth));
  std::vector<float> logSumExp = std::vector<float>(static_cast<std::size_t>(batch * heads * time));
};

Attended attendAtOnce(std::vector<float>& qkv, const AttentionAttributes& attributes) {
  Program program;
  const TensorId input = program.addTensor("qkv", {batch, time, width}, DType::f32, Role::input);
  const TensorId start = program.addTensor("start", {batch, time}, DType::i32, Role::input);
  const TensorId output = program.addTensor("output", {batch, time, outputWidth}, DType::f32, Role::output);
  const TensorId logSumExp = program.addTensor("lse", {batch, heads, time}, DType::f32, Role::output);
  program.addNode(Operator::attention, {input, start}, {output, logSumExp}, attributes);
  check(program);
  Attended result;
  std::vector<std::int32_t> starts(static_cast<std::size_t>(batch * time), 0);
  const std::vector<kernels::TensorView> views = {{qkv.data(), DType::f32, {batch, time, width}},
                                                  {starts.data(), DType::i32, {batch, time}},
                                                  {result.output.data(), DType::f32, {batch, time, outputWidth}},
                                                  {result.logSumExp.data(), DType::f32, {batch, heads, time}}};
  const auto backend = kernels::makeReferenceBackend();
  const auto stream = backend->makeStream();
  runNode(program, program.nodes()[0], views, true, *backend, *stream);
  return result;
}

std::vector<float> attendTokenByToken(const std::vector<float>& qkv, const AttentionAttributes& attributes) {
  Program program;
  const Shape cacheShape{batch, kvHeads, time, headSize};
  const TensorId input = program.addTensor("qkv", {batch, 1, width}, DType::f32, Role::input);
  const TensorId lengths = program.addTensor("lengths", {batch}, DType::i32, Role::input);
  const TensorId keys = program.addTensor("keys", cacheShape, DType::f32, Role::state);
  const TensorId values = program.addTensor("values", cacheShape, DType::f32, Role::state);
  const TensorId output = program.addTensor("output", {batch, 1, outputWidth}, DType::f32, Role::output);
  program.addNode(Operator::cachedAttention, {input, lengths, keys, values}, {output}, attributes);
  check(program);
  const auto backend = kernels::makeReferenceBackend();
  const auto stream = backend->makeStream();
  std::vector<float> keyCache(static_cast<std::size_t>(cacheShape.count())), valueCache = keyCache;
  std::vector<float> one(static_cast<std::size_t>(batch * width)), made(static_cast<std::size_t>(batch * outputWidth));
  std::vector<float> result(static_cast<std::size_t>(batch * time * outputWidth));
  for (std::int64_t token = 0; token < time; ++token) {
    std::vector<std::int32_t> before(batch, static_cast<std::int32_t>(token));
    for (std::int64_t row = 0; row < batch; ++row) {
      std::copy_n(qkv.begin() + (row * time + token) * width, width, one.begin() + row * width);
    }
    const std::vector<kernels::TensorView> views = {{one.data(), DType::f32, {batch, 1, width}},
                                                    {before.data(), DType::i32, {batch}},
                                                    {keyCache.data(), DType::f32, cacheShape},
                                                    {valueCache.data(), DType::f32, cacheShape},
                                                    {made.data(), DType::f32, {batch, 1, outputWidth}}};
    runNode(program, program.nodes()[0], views, true, *backend, *stream);
    for (std::int64_t row = 0; row < batch; ++row) {
      std::copy_n(made.begin() + row * outputWidth, outputWidth, result.begin() + (row * time + token) * outputWidth);
    }
  }
  return result;
}

TEST(CachedAttention, tokenByTokenEqualsAttentionOverAllAtOnce) {
  std::vector<float> qkv(static_cast<std::size_t>(batch * time * width));
  base::fillNormal(3, 0, 0, 1.0f, qkv);
  for (const std::int64_t window : {0, 3}) {
    const AttentionAttributes attributes{{heads, kvHeads, headSize}, window, 0.5f};
    const std::vector<float> expected = attendAtOnce(qkv, attributes).output;
    const std::vector<float> actual = attendTokenByToken(qkv, attributes);
    for (std::size_t index = 0; index < expected.size(); ++index) {
      ASSERT_NEAR(actual[index], expected[index], 1e-6) << "window " << window << ", element " << index;
    }
  }
}

// A token that sees only itself gets its own value.
TEST(CachedAttention, aWindowOfOneGivesEachTokenItsOwnValue) {
  std::vector<float> qkv(static_cast<std::size_t>(batch * time * width));
  base::fillNormal(4, 0, 0, 1.0f, qkv);
  const AttentionAttributes attributes{{heads, kvHeads, headSize}, 1, 0.5f};
  for (const auto& output : {attendAtOnce(qkv, attributes).output, attendTokenByToken(qkv, attributes)}) {
    for (std::int64_t index = 0; index < batch * time * outputWidth; ++index) {
      const std::int64_t row = index / outputWidth, head = index % outputWidth / headSize, place = index % headSize;
      const std::int64_t value = row * width + (heads + kvHeads + head * kvHeads / heads) * headSize + place;
      ASSERT_NEAR(output[static_cast<std::size_t>(index)], qkv[static_cast<std::size_t>(value)], 1e-6) << index;
    }
  }
}

}  // namespace
}  // namespace tandem::graph::test
