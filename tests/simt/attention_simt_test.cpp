// What the operator harness does not see of attention on a GPU: the instructions register by register, which kernels a
// call reaches and what is said about it, bank conflicts, float16, documents as sequences.
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
#include "kernels/cuda/document_sequences.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/storage.h"
#include "tests/simt/attention_passes.h"

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
  const std::string reason = "is not for own flash attention on mma.sync: the head size is 56, not 64, 80, 96 or 128";
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
  const auto choose = [&](const std::string& name, const std::string& cudnn = "") {
    return AttentionPaths(name, device, cudnn, cudnn.empty() ? "none here" : "");
  };
  using enum AttentionKernels;
  EXPECT_TRUE(choose("auto").tries(tensorCores));
  EXPECT_FALSE(choose("auto").tries(AttentionKernels::cudnn));
  EXPECT_TRUE(choose("auto", "cuDNN 9").tries(AttentionKernels::cudnn));
  EXPECT_FALSE(choose("mma", "cuDNN 9").tries(AttentionKernels::cudnn));
  EXPECT_FALSE(choose("reference", "cuDNN 9").tries(AttentionKernels::cudnn));
  EXPECT_FALSE(choose("reference").tries(tensorCores));
  EXPECT_NE(choose("auto").description().find("auto rejected cudnn: none here; reference: "), std::string::npos);
  EXPECT_EQ(choose("auto", "cuDNN 9").description().find("cuDNN 9, else own flash attention on mma.sync"), 0u);
  EXPECT_EQ(refusal([&] { choose("flash"); }),
            "there is no attention path 'flash'; --attention can be auto, cudnn, mma or reference");
  EXPECT_EQ(refusal([&] { choose("cudnn"); }), "--attention cudnn cannot run: none here; use --attention auto");

  device.sharedBytesPerBlock = 64 * 1024;
  EXPECT_NE(choose("auto").description().find("mma: GPU gives a block 65536 bytes"), std::string::npos);
  EXPECT_FALSE(choose("auto").tries(tensorCores));
  device.major = 7;
  device.minor = 5;
  EXPECT_NE(refusal([&] { choose("mma"); }).find("GPU is sm_75"), std::string::npos);
}

TEST(AttentionPath, reportsWhatRanAtWhatRateAndWhyNotOthers) {
  const auto backend = makeCudaBackend({});
  EXPECT_EQ(backend->attentionReport(), "");
  Passes first(*backend, {}, DType::bf16), second(*backend, {.time = 9, .size = 48}, DType::bf16);
  for (int call = 0; call < 3; ++call) {  // the first one is not timed
    first.forward();
    second.backward();
  }
  const std::string report = backend->attentionReport();
  EXPECT_EQ(report.find("Attention by own flash attention on mma.sync at "), 0u) << report;
  EXPECT_NE(report.find("FLOP/s"), std::string::npos) << report;
  EXPECT_NE(report.find("; AttentionBackward by plain kernels at "), std::string::npos) << report;
  EXPECT_NE(report.find("not by own flash attention on mma.sync: the head size is 48"), std::string::npos) << report;
}

TEST(AttentionPath, operationsAreThoseOfTheKeysThatAQuerySees) {
  EXPECT_EQ(attentionOperations(2, 3, 4, 16, 0, false), 4.0 * 2 * 3 * 16 * (1 + 2 + 3 + 4));
  EXPECT_EQ(attentionOperations(1, 1, 5, 8, 2, false), 4.0 * 8 * (1 + 2 + 2 + 2 + 2));
  EXPECT_EQ(attentionOperations(1, 1, 5, 8, 9, true), 10.0 * 8 * 15);
}

// --- documents as sequences ------------------------------------------------------------------------------------------

struct Tables {
  std::vector<std::int32_t> starts, lengths, offsets;  // offsets of a tensor of 3 elements a token
};

Tables tablesOf(const std::vector<std::int32_t>& documentStart, std::int64_t time, std::int64_t capacity) {
  const OnDevice<std::int32_t> from(documentStart);
  DocumentTables tables{.capacity = capacity, .strides = {5, 3}, .tensors = 2};
  const OnDevice<std::int32_t> memory(std::vector<std::int32_t>(static_cast<std::size_t>(tables.count()), -7));
  tables.memory = memory.data();
  Context context;
  const auto rows = static_cast<std::int64_t>(documentStart.size()) / time;
  fillTables({from.data(), DType::i32, {rows, time}}, tables, context);
  const std::vector<std::int32_t> all = memory.contents();
  const auto part = [&](const std::int32_t* begin, std::int64_t count) {
    const auto at = all.begin() + (begin - tables.memory);
    return std::vector<std::int32_t>(at, at + count);
  };
  return {part(tables.starts(), capacity + 1), part(tables.lengths(), capacity), part(tables.offsets(1), capacity + 1)};
}

TEST(DocumentTables, sequencesAreTheDocumentsOfAllRowsInTheirOrder) {
  const Tables tables = tablesOf({0, 0, 2, 2, 2, 0, 1, 1, 1, 4}, 5, 8);
  EXPECT_EQ(tables.starts, (std::vector<std::int32_t>{0, 2, 5, 6, 9, 10, 10, 10, 10}));
  EXPECT_EQ(tables.lengths, (std::vector<std::int32_t>{2, 3, 1, 3, 1, 0, 0, 0}));
  EXPECT_EQ(tables.offsets, (std::vector<std::int32_t>{0, 6, 15, 18, 27, 30, 30, 30, 30}));
}

TEST(DocumentTables, rowsLongerThanABlockAndFullTablesHoldThem) {
  constexpr std::int64_t time = 600;
  std::vector<std::int32_t> documentStart, want;
  for (std::int32_t row = 0; row < 3; ++row) {
    for (std::int32_t place = 0; place < time; ++place) {
      const bool begins = place % (17 + row) == 0;
      documentStart.push_back(begins ? place : documentStart.back());
      if (begins) want.push_back(row * static_cast<std::int32_t>(time) + place);
    }
  }
  const auto count = static_cast<std::int64_t>(want.size());
  want.push_back(3 * time);
  EXPECT_EQ(tablesOf(documentStart, time, count).starts, want);
  // One place too few: what is there still ends where all tokens do, so that nobody reads beyond.
  want.erase(want.end() - 2);
  EXPECT_EQ(tablesOf(documentStart, time, count - 1).starts, want);
}

TEST(DocumentTables, statisticsGoFromHeadsToTokensAndBack) {
  std::vector<float> byHead(2 * 3 * 5);
  for (std::size_t i = 0; i < byHead.size(); ++i) byHead[i] = static_cast<float>(i);
  const OnDevice<float> from(byHead), byToken(std::vector<float>(30)), back(std::vector<float>(30));
  Context context;
  headsToTokens(from.data(), byToken.data(), {2, 3, 5}, context);
  tokensToHeads(byToken.data(), back.data(), {2, 3, 5}, context);
  EXPECT_EQ(back.contents(), byHead);
  EXPECT_EQ(byToken.contents()[1], byHead[5]);    // token 0 of row 0, head 1
  EXPECT_EQ(byToken.contents()[15], byHead[15]);  // token 0 of row 1, head 0
}

}  // namespace

}  // namespace tandem::kernels::cuda
