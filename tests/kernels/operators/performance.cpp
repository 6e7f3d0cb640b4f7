#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "common/base/error.h"
#include "tests/kernels/operators/backends.h"
#include "tests/kernels/operators/modes.h"
#include "tests/kernels/operators/workspace.h"

#ifdef TANDEM_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

namespace tandem::kernels::test {

namespace {

// The shortest of the repetitions that fit into a quarter of a second, three at least.
template <class Work>
double secondsOf(Work work) {
  using Clock = std::chrono::steady_clock;
  work();
  double best = 1e30, total = 0;
  for (int repetition = 0; repetition < 3 || total < 0.25; ++repetition) {
    const auto begin = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

// Bytes a second, read and written, of a copy by as many threads as the backend uses.
double copyBandwidth(int threads) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  std::vector<std::byte> source(bytes, std::byte{1}), target(bytes);
  const std::size_t share = bytes / static_cast<std::size_t>(threads);
  const double seconds = secondsOf([&] {
    std::vector<std::jthread> workers;
    for (std::size_t begin = 0; begin + share <= bytes; begin += share) {
      workers.emplace_back([&, begin] { std::memcpy(target.data() + begin, source.data() + begin, share); });
    }
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

#ifdef TANDEM_TEST_CUDA
// The same, of the vendor's copy on the device; far more than its caches hold.
double deviceCopyBandwidth() {
  constexpr std::size_t bytes = std::size_t{512} << 20;
  void *source = nullptr, *target = nullptr;
  if (cudaMalloc(&source, bytes) != cudaSuccess || cudaMalloc(&target, bytes) != cudaSuccess) return 0;
  const double seconds = secondsOf([&] {
    cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToDevice);
    cudaDeviceSynchronize();
  });
  cudaFree(source);
  cudaFree(target);
  return 2.0 * static_cast<double>(bytes) / seconds;
}
#else
double deviceCopyBandwidth() { return 0; }
#endif

Case squareProduct(std::int64_t size) {
  Case c("ceiling", "product");
  c.tensor("input", {size, size}, normal()).tensor("weight", {size, size}, normal()).result("output", {size, size});
  return c.step("Linear", 2 * static_cast<double>(size * size * size),
                [](Operands& v, Backend& backend, Stream& stream) {
                  backend.run(Linear{.input = v.in("input"),
                                     .weight = v.in("weight"),
                                     .bias = {},
                                     .preActivation = {},
                                     .output = v.out("output")},
                              stream);
                });
}

double productRate(Backend& backend, DType type, std::int64_t size) {
  const Case recipe = squareProduct(size);
  Placement place(backend, Image(recipe, type, 1));
  return recipe.steps[0].flops / secondsOf([&] { place.run(recipe.steps[0]); });
}

// What the last step asked for, read or written once; of tables the rows alone.
double bytesTouched(const Case& recipe, const Operands& operands, DType varied) {
  double bytes = 0, largest = 0;
  std::vector<double> tables;
  for (const auto* names : {&operands.read(), &operands.written()}) {
    for (const std::string& name : *names) {
      const Operand& operand = recipe.operand(name);
      const auto size =
          static_cast<double>(operand.shape.count() * base::byteSize(elementType(operand.storage, varied)));
      if (operand.isTable) {
        tables.push_back(size);
      } else {
        bytes += size;
        largest = std::max(largest, size);
      }
    }
  }
  for (const double size : tables) bytes += std::min(size, largest);
  return bytes;
}

struct Ceilings {
  double single, half, bytes;
  double flops(DType type) const { return type == DType::f32 ? single : half; }
};

Ceilings ceilingsOf(Backend& backend, int threads) {
  if (backend.isHostMemory()) {
    const double rate = productRate(backend, DType::f32, 1024);
    return {rate, rate, copyBandwidth(threads)};
  }
  constexpr std::int64_t size = 4096;
  return {productRate(backend, DType::f32, size), productRate(backend, DType::bf16, size), deviceCopyBandwidth()};
}

void timeCase(const Case& recipe, DType type, Backend& backend, const Ceilings& ceilings) {
  Placement place(backend, Image(recipe, type, 1));
  for (const Step& step : recipe.steps) {
    const double seconds = secondsOf([&] { place.run(step); });
    const double flopRate = step.flops / seconds, byteRate = bytesTouched(recipe, place.operands, type) / seconds;
    std::printf("%-22s %-84s %-9s %10.3f ms %9.1f GFLOP/s %4.0f %% %8.1f GB/s %4.0f %%\n", step.operatorName.c_str(),
                recipe.name().c_str(), base::name(type), seconds * 1e3, flopRate * 1e-9,
                100 * flopRate / ceilings.flops(type), byteRate * 1e-9, 100 * byteRate / ceilings.bytes);
    std::fflush(stdout);
  }
}

bool isWanted(const Case& recipe, const std::string& part) {
  const auto contains = [&](const std::string& text) { return text.find(part) != std::string::npos; };
  return contains(recipe.name()) || std::any_of(recipe.steps.begin(), recipe.steps.end(),
                                                [&](const Step& step) { return contains(step.operatorName); });
}

}  // namespace

void printPerformance(const ModeOptions& options) {
  for (const BackendChoice& choice : backendChoices()) {
    // The reference is not made to be fast: it is timed only when asked for by name.
    if (options.backend.empty() ? choice.name == "reference" : choice.name != options.backend) continue;
    Backend& backend = backendFor(choice, options.threads);
    const int threads = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
    const Ceilings ceilings = ceilingsOf(backend, threads);
    std::printf("%s\n", backend.description().c_str());
    std::printf(
        "ceilings: square products %.1f GFLOP/s in float32, %.1f in bfloat16, copy %.1f GB/s; percentages are shares\n",
        ceilings.single * 1e-9, ceilings.half * 1e-9, ceilings.bytes * 1e-9);
    for (const Case& recipe : registry().timed) {
      if (!isWanted(recipe, options.operatorName)) continue;
      for (const DType type : recipe.types) {
        try {
          timeCase(recipe, type, backend, ceilings);
        } catch (const base::Error& error) {  // a path that was asked for by name and does not take the case
          std::printf("%s, %s: %s\n", recipe.name().c_str(), base::name(type), error.message().c_str());
        }
      }
    }
  }
}

}  // namespace tandem::kernels::test
