// Attention by cuDNN as far as it can be tried without it: our graphs are built by cudnn-frontend and handed to a
// libcudnn.so.9 that only answers (tests/simt/emulator/cudnn.cpp), so that every answer's way is walked. What cuDNN
// computes is not seen here.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>

#include "common/base/error.h"
#include "kernels/backend.h"
#include "tests/simt/attention_passes.h"

namespace tandem::kernels::cuda {

namespace {

class CudnnAttentionTest : public testing::Test {
 protected:
  void answer(const char* mode) { setenv("SIMT_CUDNN", mode, 1); }
  void SetUp() override { setenv("SIMT_ARCH", "90", 1); }  // where cudnn-frontend lets every graph of ours through
  void TearDown() override {
    unsetenv("SIMT_CUDNN");
    unsetenv("SIMT_ARCH");
  }
};

const Call dense{.rows = 2, .documents = 2};
const Call packed{
    .rows = 2, .documentStart = {0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 15, 15, 15, 15, 15}, .documents = 6};

// Tensors of the plan that the stand-in ran last.
std::map<std::int64_t, void*> lastTensors() {
  void* const library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(library, nullptr);
  using Function = int (*)(std::int64_t*, void**, int);
  const auto ask = reinterpret_cast<Function>(dlsym(library, "simtCudnnTensors"));
  std::int64_t names[64];
  void* addresses[64];
  const int count = ask(names, addresses, 64);
  dlclose(library);
  std::map<std::int64_t, void*> tensors;
  for (int i = 0; i < count; ++i) tensors[names[i]] = addresses[i];
  return tensors;
}

TEST_F(CudnnAttentionTest, isFoundAndComesFirst) {
  const auto backend = makeCudaBackend({});
  EXPECT_NE(backend->description().find("attention by cuDNN 9."), std::string::npos) << backend->description();
}

TEST_F(CudnnAttentionTest, takesDenseAndPackedCallsThatItHasAPlanFor) {
  answer("idle");
  const auto backend = makeCudaBackend({});
  for (const Call& call : {dense, packed}) {
    Passes passes(*backend, call, DType::bf16);
    EXPECT_FALSE(readsFragments([&] {
      passes.forward();
      passes.backward();
    }));
  }
  const std::string report = backend->attentionReport();
  EXPECT_EQ(report.find("Attention by cuDNN 9."), 0u) << report;
  EXPECT_NE(report.find("AttentionBackward by cuDNN 9."), std::string::npos) << report;
  EXPECT_EQ(report.find("mma"), std::string::npos) << report;
}

TEST_F(CudnnAttentionTest, packedDocumentsAreHandedOverByLengthsAndOffsets) {
  answer("idle");
  const auto backend = makeCudaBackend({.attention = "cudnn"});
  Passes passes(*backend, packed, DType::bf16);
  passes.forward();
  const auto tensors = lastTensors();
  // query, key, value, output and statistics, an offset table each, and two names for the lengths.
  for (const std::int64_t name : {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 19}) EXPECT_EQ(tensors.count(name), 1u) << name;
  const auto numbers = [&](std::int64_t tensor, std::int64_t count) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(count));
    backend->copyToHost(all.data(), tensors.at(tensor), count * 4, passes.stream());
    passes.stream().synchronize();
    return all;
  };
  EXPECT_EQ(numbers(9, 8), (std::vector<std::int32_t>{5, 10, 5, 5, 10, 5, 0, 0}));
  EXPECT_EQ(numbers(11, 9), (std::vector<std::int32_t>{0, 640, 1920, 2560, 3200, 4480, 5120, 5120, 5120}));
  EXPECT_EQ(numbers(12, 9), (std::vector<std::int32_t>{0, 320, 960, 1280, 1600, 2240, 2560, 2560, 2560}));
}

TEST_F(CudnnAttentionTest, whatItDoesNotSupportGoesToTheTensorCoresWithItsReason) {
  for (const auto& [mode, reason] :
       std::map<std::string, std::string>{{"unsupported", "no engine of this stand-in has attention"},
                                          {"unwilling", "building a plan"},
                                          {"hungry", "wants a workspace of 3221225472 bytes"},
                                          {"late", "executing its plan: "}}) {
    answer(mode.c_str());
    const auto backend = makeCudaBackend({});
    const auto reference = makeCudaBackend({.attention = "mma"});
    for (const Call& call : {dense, packed}) {
      Passes tried(*backend, call, DType::bf16), wanted(*reference, call, DType::bf16);
      for (Passes* passes : {&tried, &wanted}) {
        EXPECT_TRUE(readsFragments([&] { passes->forward(); })) << mode;
        EXPECT_TRUE(readsFragments([&] { passes->backward(); })) << mode;
      }
      EXPECT_EQ(tried.results(), wanted.results()) << mode;
    }
    const std::string report = backend->attentionReport();
    EXPECT_EQ(report.find("Attention by own flash attention on mma.sync"), 0u) << report;
    EXPECT_NE(report.find("(not by cuDNN 9."), std::string::npos) << report;
  }
}

// Sums in a fixed order over packed documents: cudnn-frontend knows that this GPU has none.
TEST_F(CudnnAttentionTest, gradientsOfPackedDocumentsGoToTheTensorCoresOnSm121) {
  setenv("SIMT_ARCH", "121", 1);
  answer("idle");
  const auto backend = makeCudaBackend({});
  Passes passes(*backend, packed, DType::bf16);
  EXPECT_FALSE(readsFragments([&] { passes.forward(); }));
  EXPECT_TRUE(readsFragments([&] { passes.backward(); }));
  const std::string report = backend->attentionReport();
  EXPECT_NE(report.find("AttentionBackward by own flash attention on mma.sync (not by cuDNN 9."), std::string::npos);
  EXPECT_NE(report.find("Deterministic algorithm is not supported"), std::string::npos) << report;
}

TEST_F(CudnnAttentionTest, aPlanThatFailedIsNotStartedAgain) {
  answer("late");
  const auto backend = makeCudaBackend({});
  Passes passes(*backend, dense, DType::bf16);
  passes.forward();
  answer("idle");  // it would run now
  EXPECT_TRUE(readsFragments([&] { passes.forward(); }));
}

TEST_F(CudnnAttentionTest, askedForByNameItRefusesWhatItCannotTake) {
  answer("idle");
  const auto backend = makeCudaBackend({.attention = "cudnn"});
  const auto why = [&](const Call& call) {
    Passes passes(*backend, call, DType::bf16);
    const std::string forward = refusal([&] { passes.forward(); });
    EXPECT_NE(refusal([&] { passes.backward(); }).find("cannot take a call of AttentionBackward: "), std::string::npos);
    return forward;
  };
  EXPECT_NE(why({.type = DType::f32, .documents = 1}).find("the storage type is float32"), std::string::npos);
  EXPECT_NE(why({}).find("how many documents the rows hold is not known"), std::string::npos);
  EXPECT_NE(why({.shift = 1, .documents = 1}).find("multiples of 16 bytes"), std::string::npos);
  answer("unsupported");
  EXPECT_NE(why({.time = 21, .documents = 1}).find("no engine"), std::string::npos);
  Passes passes(*backend, {}, DType::bf16);
  EXPECT_TRUE(readsFragments([&] { passes.overCache(); }));  // own kernels, always
}

}  // namespace

}  // namespace tandem::kernels::cuda
