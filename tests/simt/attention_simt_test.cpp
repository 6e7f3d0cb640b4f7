// What the operator harness does not see of attention on a GPU: the instructions register by register, which kernels a
// call reaches and what is said about it, bank conflicts, float16.
#include <gtest/gtest.h>

#include <boost/log/core.hpp>

#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <vector>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_path.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

// --- instructions
// --------------------------------------------------------------------------------------------------------

template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& contents) : count_(contents.size()) {
    check(cudaMalloc(&memory_, count_ * sizeof(T)), "test");
    check(cudaMemcpy(memory_, contents.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "test");
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* data() const { return static_cast<T*>(memory_); }
  std::vector<T> contents() const {
    std::vector<T> all(count_);
    check(cudaDeviceSynchronize(), "test");
    check(cudaMemcpy(all.data(), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "test");
    return all;
  }

 private:
  void* memory_ = nullptr;
  std::size_t count_;
};

// Each lane's registers of one mma: 4 words of the left operand, 2 of the right one, 4 numbers of the sum.
template <class T>
__global__ void mmaKernel(const std::uint32_t* left, const std::uint32_t* right, float* sums) {
  const unsigned lane = threadIdx.x;
  std::uint32_t a[4], b[2];
  float d[4];
  for (unsigned i = 0; i < 4; ++i) a[i] = left[4 * lane + i];
  for (unsigned i = 0; i < 2; ++i) b[i] = right[2 * lane + i];
  for (unsigned i = 0; i < 4; ++i) d[i] = sums[4 * lane + i];
  if constexpr (std::is_same_v<T, __half>) {
    ptx::mma_m16n8k16_f16(d, a, b);
  } else {
    ptx::mma_m16n8k16_bf16(d, a, b);
  }
  for (unsigned i = 0; i < 4; ++i) sums[4 * lane + i] = d[i];
}

// Each lane brings a row of eight elements and gets four registers, straight and transposed.
__global__ void ldmatrixKernel(const std::uint16_t* rows, std::uint32_t* straight, std::uint32_t* transposed) {
  SHARED_ARRAY(uint4, shared, [32]);
  const unsigned lane = threadIdx.x;
  shared[lane] = reinterpret_cast<const uint4*>(rows)[lane];
  __syncwarp();
  std::uint32_t registers[4];
  ptx::ldmatrix_x4(registers, &shared[lane]);
  for (unsigned i = 0; i < 4; ++i) straight[4 * lane + i] = registers[i];
  ptx::ldmatrix_x4_trans(registers, &shared[lane]);
  for (unsigned i = 0; i < 4; ++i) transposed[4 * lane + i] = registers[i];
}

// Lanes copy 16 bytes each in two groups, of which odd lanes take zeros in the second.
__global__ void copyKernel(const uint4* from, uint4* first, uint4* second) {
  SHARED_ARRAY(uint4, shared, [2][32]);
  const unsigned lane = threadIdx.x;
  ptx::cp_async_16(&shared[0][lane], from + lane);
  ptx::cp_async_commit();
  ptx::cp_async_16(&shared[1][lane], from + lane, lane % 2 == 0);
  ptx::cp_async_commit();
  ptx::cp_async_wait<1>();
  __syncwarp();
  first[lane] = shared[0][31 - lane];
  ptx::cp_async_wait<0>();
  __syncwarp();
  second[lane] = shared[1][31 - lane];
}

__global__ void exp2Kernel(const float* from, float* to) { to[threadIdx.x] = ptx::exp2(from[threadIdx.x]); }

// The layouts in CuTe's notation, strides of (lane % 4, lane / 4) and of the bits of a value's number in a column-major
// operand: a statement of its own, so that a mistake made alike in mma and in the kernels cannot hide.
template <class T>
void expectMmaLayout() {
  base::RandomStream random(1, 0);
  std::vector<T> left(16 * 16), right(8 * 16);
  std::vector<float> sum(16 * 8);
  for (auto* operand : {&left, &right}) {
    for (T& element : *operand) element = fromFloat<T>(static_cast<float>(random.nextNormal()));
  }
  for (float& element : sum) element = static_cast<float>(random.nextNormal());
  std::vector<T> leftRegisters(256), rightRegisters(128);
  std::vector<float> sumRegisters(128);
  const auto sumPlace = [](unsigned lane, unsigned value) {
    return lane % 4 * 32 + lane / 4 + (value & 1) * 16 + (value >> 1) * 8;
  };
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned t = lane % 4, g = lane / 4;
    for (unsigned v = 0; v < 8; ++v) {
      leftRegisters[lane * 8 + v] = left[t * 32 + g + (v & 1) * 16 + (v >> 1 & 1) * 8 + (v >> 2) * 128];
    }
    for (unsigned v = 0; v < 4; ++v) {
      rightRegisters[lane * 4 + v] = right[t * 16 + g + (v & 1) * 8 + (v >> 1) * 64];
      sumRegisters[lane * 4 + v] = sum[sumPlace(lane, v)];
    }
  }
  const OnDevice<T> leftOnDevice(leftRegisters), rightOnDevice(rightRegisters);
  const OnDevice<float> sums(sumRegisters);
  check(launch<mmaKernel<T>>({1, 32, 0, nullptr}, reinterpret_cast<const std::uint32_t*>(leftOnDevice.data()),
                             reinterpret_cast<const std::uint32_t*>(rightOnDevice.data()), sums.data()),
        "mma");
  const std::vector<float> results = sums.contents();
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned v = 0; v < 4; ++v) {
      const unsigned place = sumPlace(lane, v), row = place % 16, column = place / 16;
      double want = static_cast<double>(sum[place]);
      for (unsigned k = 0; k < 16; ++k) {
        want += static_cast<double>(toFloat(left[row + 16 * k])) * static_cast<double>(toFloat(right[column + 8 * k]));
      }
      EXPECT_NEAR(static_cast<double>(results[lane * 4 + v]), want, 1e-4) << "lane " << lane << ", value " << v;
    }
  }
}

TEST(Instructions, mmaMultipliesBfloat16FragmentsAsTheyLie) { expectMmaLayout<__nv_bfloat16>(); }
TEST(Instructions, mmaMultipliesFloat16FragmentsAsTheyLie) { expectMmaLayout<__half>(); }

TEST(Instructions, ldmatrixDealsRowsToLanesStraightAndTransposed) {
  std::vector<std::uint16_t> rows(256);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint16_t>(i);
  const OnDevice<std::uint16_t> from(rows);
  const OnDevice<std::uint32_t> straight(std::vector<std::uint32_t>(128)), transposed(std::vector<std::uint32_t>(128));
  check(launch<ldmatrixKernel>({1, 32, 0, nullptr}, from.data(), straight.data(), transposed.data()), "ldmatrix");
  const auto gotStraight = straight.contents(), gotTransposed = transposed.contents();
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      const auto at = [&](unsigned row, unsigned column) { return (8 * matrix + row) * 8 + column; };
      const unsigned row = lane / 4, column = lane % 4 * 2;
      EXPECT_EQ(gotStraight[4 * lane + matrix], at(row, column) | at(row, column + 1) << 16);
      EXPECT_EQ(gotTransposed[4 * lane + matrix], at(column, row) | at(column + 1, row) << 16);
    }
  }
}

TEST(Instructions, asynchronousCopiesHaveArrivedWhenTheirGroupIsWaitedFor) {
  std::vector<std::uint32_t> words(128);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint32_t>(i + 1);
  const OnDevice<std::uint32_t> from(words), first(std::vector<std::uint32_t>(128)),
      second(std::vector<std::uint32_t>(128));
  const auto chunks = [](const OnDevice<std::uint32_t>& memory) { return reinterpret_cast<uint4*>(memory.data()); };
  check(launch<copyKernel>({1, 32, 0, nullptr}, chunks(from), chunks(first), chunks(second)), "cp.async");
  const auto gotFirst = first.contents(), gotSecond = second.contents();
  for (std::size_t i = 0; i < 128; ++i) {
    const std::size_t lane = 31 - i / 4, source = 4 * lane + i % 4;
    EXPECT_EQ(gotFirst[i], words[source]);
    EXPECT_EQ(gotSecond[i], lane % 2 == 0 ? words[source] : 0u);
  }
}

TEST(Instructions, exp2IsThatOfAFloatAndZeroForTheTiniest) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> arguments = {0, 1, -1, 0.5f, -12.25f, 100, -126, -130, -infinity, infinity, 200, std::nanf("")};
  arguments.resize(32);
  const OnDevice<float> from(arguments), to(std::vector<float>(32));
  check(launch<exp2Kernel>({1, 32, 0, nullptr}, from.data(), to.data()), "exp2");
  const std::vector<float> got = to.contents();
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(got[i] / std::exp2(arguments[i]), 1, 3e-7);
  EXPECT_EQ(got[7], 0);
  EXPECT_EQ(got[8], 0);
  EXPECT_EQ(got[9], infinity);
  EXPECT_EQ(got[10], infinity);
  EXPECT_TRUE(std::isnan(got[11]));
}

// --- paths
// ---------------------------------------------------------------------------------------------------------------

struct Call {
  std::int64_t time = 20, heads = 2, kvHeads = 1, size = 64;
  DType type = DType::bf16;
  std::int64_t shift = 0;  // elements that all operands miss an aligned address by
};

double stored(DType type, double value) {
  const auto single = static_cast<float>(value);
  if (type == DType::bf16) return static_cast<double>(toFloat(fromFloat<__nv_bfloat16>(single)));
  return static_cast<double>(type == DType::f16 ? toFloat(fromFloat<__half>(single)) : single);
}

// Operands of a forward and a backward pass on a backend, drawn alike for every backend.
class Passes {
 public:
  Passes(Backend& backend, const Call& call, DType drawnAs)
      : backend_(backend), call_(call), stream_(backend.makeStream()) {
    const std::int64_t q = call.heads, k = call.kvHeads;
    for (const std::int64_t heads : {q, k, k, q, q, q, k, k}) views_.push_back(tensor(heads, drawnAs));
    documentStart_ = TensorView(allocate(call.time * 4), DType::i32, {1, call.time});
    const std::vector<std::int32_t> starts(static_cast<std::size_t>(call.time));
    backend.copyToDevice(documentStart_.data, starts.data(), call.time * 4, *stream_);
    logSumExp_ = TensorView(allocate(q * call.time * 4), DType::f32, {1, q, call.time});
    stream_->synchronize();
  }
  ~Passes() {
    for (void* memory : memories_) backend_.release(memory);
  }
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  void forward() {
    backend_.run(Attention{.query = views_[0],
                           .key = views_[1],
                           .value = views_[2],
                           .documentStart = documentStart_,
                           .window = 0,
                           .scale = 0.125f,
                           .output = views_[4],
                           .logSumExp = logSumExp_},
                 *stream_);
    stream_->synchronize();
  }
  void backward() {
    backend_.run(AttentionBackward{.query = views_[0],
                                   .key = views_[1],
                                   .value = views_[2],
                                   .documentStart = documentStart_,
                                   .output = views_[4],
                                   .logSumExp = logSumExp_,
                                   .gradOutput = views_[3],
                                   .window = 0,
                                   .scale = 0.125f,
                                   .gradQuery = views_[5],
                                   .gradKey = views_[6],
                                   .gradValue = views_[7]},
                 *stream_);
    stream_->synchronize();
  }
  // The fresh tokens alone, over an empty cache as long as they.
  void overCache() {
    const Shape shape = {1, call_.kvHeads, call_.time, call_.size};
    const std::int64_t bytes = shape.count() * base::byteSize(call_.type);
    const TensorView keys(allocate(bytes), call_.type, shape), values(allocate(bytes), call_.type, shape);
    const TensorView lengths(allocate(4), DType::i32, {1});
    const std::int32_t none = 0;
    backend_.copyToDevice(lengths.data, &none, 4, *stream_);
    backend_.run(CachedAttention{.query = views_[0],
                                 .key = views_[1],
                                 .value = views_[2],
                                 .lengths = lengths,
                                 .keyCache = keys,
                                 .valueCache = values,
                                 .window = 0,
                                 .scale = 0.125f,
                                 .output = views_[4]},
                 *stream_);
    stream_->synchronize();
  }
  // Output and the three gradients.
  std::vector<double> results() {
    std::vector<double> all;
    for (const std::size_t view : {4u, 5u, 6u, 7u}) {
      const auto count = static_cast<std::size_t>(views_[view].shape.count());
      std::vector<std::uint16_t> halves(count);
      std::vector<float> singles(count);
      void* to = call_.type == DType::f32 ? static_cast<void*>(singles.data()) : halves.data();
      backend_.copyToHost(to, views_[view].data, static_cast<std::int64_t>(count) * base::byteSize(call_.type),
                          *stream_);
      stream_->synchronize();
      for (std::size_t i = 0; i < count; ++i) {
        if (call_.type == DType::f32) all.push_back(static_cast<double>(singles[i]));
        if (call_.type == DType::bf16)
          all.push_back(static_cast<double>(toFloat(std::bit_cast<__nv_bfloat16>(halves[i]))));
        if (call_.type == DType::f16) all.push_back(static_cast<double>(toFloat(std::bit_cast<__half>(halves[i]))));
      }
    }
    return all;
  }

 private:
  void* allocate(std::int64_t bytes) { return memories_.emplace_back(backend_.allocate(bytes)); }
  TensorView tensor(std::int64_t heads, DType drawnAs) {
    const Shape shape = {1, call_.time, heads, call_.size};
    const auto count = static_cast<std::size_t>(shape.count());
    base::RandomStream random(3, views_.size());
    std::vector<float> singles(count);
    std::vector<std::uint16_t> halves(count);
    for (std::size_t i = 0; i < count; ++i) {
      singles[i] = static_cast<float>(stored(drawnAs, static_cast<double>(random.nextNormal())));
      halves[i] = call_.type == DType::f16 ? std::bit_cast<std::uint16_t>(fromFloat<__half>(singles[i]))
                                           : std::bit_cast<std::uint16_t>(fromFloat<__nv_bfloat16>(singles[i]));
    }
    const std::int64_t size = base::byteSize(call_.type), bytes = shape.count() * size;
    void* memory = static_cast<std::byte*>(allocate(bytes + call_.shift * size)) + call_.shift * size;
    backend_.copyToDevice(memory, call_.type == DType::f32 ? static_cast<const void*>(singles.data()) : halves.data(),
                          bytes, *stream_);
    stream_->synchronize();
    return TensorView(memory, call_.type, shape);
  }

  Backend& backend_;
  Call call_;
  std::unique_ptr<Stream> stream_;
  std::vector<void*> memories_;
  std::vector<TensorView> views_;  // query, key, value, gradOutput, output, gradQuery, gradKey, gradValue
  TensorView documentStart_, logSumExp_;
};

// Whether the tensor cores ran, from the reads of their fragments.
bool readsFragments(const std::function<void()>& run) {
  simt::reset_stats();
  run();
  return simt::stats().ldmatrix_phases > 0;
}

TEST(AttentionPath, fragmentsAreReadWithoutBankConflicts) {
  const auto backend = makeCudaBackend({});
  for (const std::int64_t size : {64, 80, 96, 128}) {
    Passes passes(*backend, {.time = 70, .size = size}, DType::bf16);
    simt::reset_stats();
    passes.forward();
    const auto forward = simt::stats();
    EXPECT_GT(forward.ldmatrix_phases, 0u) << "head size " << size;
    EXPECT_EQ(forward.ldmatrix_conflicts, 0u) << "head size " << size;
    simt::reset_stats();
    passes.backward();
    const auto backward = simt::stats();
    EXPECT_GT(backward.ldmatrix_phases, 0u) << "head size " << size;
    EXPECT_EQ(backward.ldmatrix_conflicts, 0u) << "head size " << size;
  }
}

TEST(AttentionPath, float16AgreesWithFloat32) {
  const auto backend = makeCudaBackend({});
  const auto reference = makeReferenceBackend();
  for (const std::int64_t size : {64, 48}) {  // tensor cores, plain kernels
    Passes half(*backend, {.size = size, .type = DType::f16}, DType::f16);
    Passes single(*reference, {.size = size, .type = DType::f32}, DType::f16);
    for (Passes* passes : {&half, &single}) {
      passes->forward();
      passes->backward();
    }
    const std::vector<double> got = half.results(), want = single.results();
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 8e-3 * (1 + std::abs(want[i]))) << i;
  }
}

TEST(AttentionPath, autoTakesTheTensorCoresWhereverTheyCanTakeACall) {
  const auto backend = makeCudaBackend({});
  const auto runs = [&](const Call& call) {
    Passes passes(*backend, call, DType::bf16);
    const bool forward = readsFragments([&] { passes.forward(); });
    EXPECT_EQ(readsFragments([&] { passes.backward(); }), forward);
    EXPECT_EQ(readsFragments([&] { passes.overCache(); }), forward && call.time >= 16);
    return forward;
  };
  EXPECT_TRUE(runs({}));
  EXPECT_TRUE(runs({.type = DType::f16}));
  EXPECT_TRUE(runs({.time = 3}));
  EXPECT_FALSE(runs({.type = DType::f32}));
  EXPECT_FALSE(runs({.size = 72}));
  EXPECT_FALSE(runs({.shift = 1}));
}

TEST(AttentionPath, aFallbackIsLoggedOnceForItsReason) {
  const std::filesystem::path log = std::filesystem::temp_directory_path() / "attention_simt_test.log";
  std::filesystem::remove(log);
  base::logToFile(log);
  const auto backend = makeCudaBackend({});
  Passes passes(*backend, {.time = 2, .size = 56}, DType::bf16);
  passes.forward();
  passes.forward();
  passes.backward();
  boost::log::core::get()->flush();
  const std::string said = base::readFile(log);
  const std::string reason = "not the tensor cores: the head size is 56, not 64, 80, 96 or 128";
  const std::size_t first = said.find(reason);
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find(reason, first + 1), std::string::npos) << said;
  boost::log::core::get()->remove_all_sinks();
  std::filesystem::remove(log);
}

TEST(AttentionPath, referenceNeverTakesTheTensorCores) {
  const auto backend = makeCudaBackend({.attention = "reference"});
  Passes passes(*backend, {}, DType::bf16);
  EXPECT_FALSE(readsFragments([&] {
    passes.forward();
    passes.backward();
    passes.overCache();
  }));
}

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    return error.message();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(AttentionPath, mmaByNameRefusesACallItCannotTake) {
  const auto backend = makeCudaBackend({.attention = "mma"});
  const auto why = [&](const Call& call) {
    Passes passes(*backend, call, DType::bf16);
    const std::string forward = refusal([&] { passes.forward(); });
    EXPECT_EQ(refusal([&] { passes.backward(); }).substr(0, 20), forward.substr(0, 20));
    return forward;
  };
  EXPECT_NE(why({.type = DType::f32}).find("the storage type is float32"), std::string::npos);
  EXPECT_NE(why({.size = 72}).find("the head size is 72, not 64, 80, 96 or 128"), std::string::npos);
  EXPECT_NE(why({.shift = 1}).find("multiples of 16 bytes"), std::string::npos);
  Passes taken(*backend, {}, DType::bf16);
  EXPECT_TRUE(readsFragments([&] { taken.forward(); }));
}

TEST(AttentionPath, headsLargerThanAllKernelsTakeAreRefused) {
  const auto backend = makeCudaBackend({});
  Passes passes(*backend, {.time = 2, .size = 264, .type = DType::f32}, DType::f32);
  EXPECT_NE(refusal([&] { passes.forward(); }).find("head sizes up to 256, not 264"), std::string::npos);
}

TEST(AttentionPath, isChosenByNameAndByTheDevice) {
  DeviceProperties device;
  device.name = "GPU";
  device.major = 8;
  device.sharedBytesPerBlock = 99 * 1024;
  EXPECT_EQ(chooseAttentionPath("auto", device).path, AttentionPath::tensorCores);
  EXPECT_EQ(chooseAttentionPath("mma", device).path, AttentionPath::tensorCoresOnly);
  EXPECT_EQ(chooseAttentionPath("reference", device).path, AttentionPath::plain);
  EXPECT_NE(chooseAttentionPath("auto", device).description.find("auto rejected reference: "), std::string::npos);
  EXPECT_EQ(refusal([&] { chooseAttentionPath("flash", device); }),
            "there is no attention path 'flash'; --attention can be auto, mma or reference");

  device.sharedBytesPerBlock = 64 * 1024;
  EXPECT_NE(chooseAttentionPath("auto", device).description.find("auto rejected mma: GPU gives a block 65536 bytes"),
            std::string::npos);
  EXPECT_EQ(chooseAttentionPath("auto", device).path, AttentionPath::plain);
  device.major = 7;
  device.minor = 5;
  EXPECT_NE(refusal([&] { chooseAttentionPath("mma", device); }).find("GPU is sm_75"), std::string::npos);
}

}  // namespace

}  // namespace tandem::kernels::cuda
