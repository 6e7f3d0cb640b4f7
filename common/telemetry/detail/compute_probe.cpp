// Loads through the kernel contract, so that what is measured is what the training will run.

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "common/runtime/executable.h"
#include "common/telemetry/preflight_probes.h"
#include "common/telemetry/run_record.h"

namespace tandem::telemetry {
namespace {

using base::DType;
using Clock = std::chrono::steady_clock;
using kernels::TensorView;
using runtime::DeviceMemory;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Work that is done again and again, and how much it is.
struct Load {
  std::function<void()> enqueue;
  double amount = 0;
};

class Probe {
 public:
  Probe(comm::Communicator& world, kernels::Backend& backend, kernels::Stream& stream)
      : world_(world),
        backend_(backend),
        stream_(stream),
        storage_(backend.isHostMemory() ? DType::f32 : DType::bf16) {}

  // Rates of one run after the other, for so long, all ranks having begun together.
  std::vector<double> rates(const Load& load, double seconds) {
    load.enqueue();  // chooses algorithms, fills tables
    stream_.synchronize();
    world_.barrier();
    std::vector<double> found;
    const Clock::time_point begin = Clock::now();
    do {
      const Clock::time_point start = Clock::now();
      load.enqueue();
      stream_.synchronize();
      found.push_back(load.amount / secondsSince(start));
    } while (secondsSince(begin) < seconds);
    return found;
  }

  double rate(const Load& load, double seconds) { return median(rates(load, seconds)); }

  bool onHost() const { return backend_.isHostMemory(); }
  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return stream_; }
  DType storage() const { return storage_; }

  std::unique_ptr<DeviceMemory> filled(DType type, std::int64_t count) {
    auto memory = std::make_unique<DeviceMemory>(backend_, count * base::byteSize(type));
    const float value = 1e-3f;
    backend_.run(kernels::Fill{.target = TensorView(memory->data(), type, {count}), .value = value}, stream_);
    return memory;
  }

 private:
  comm::Communicator& world_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  DType storage_;
};

// Square matrices of the largest size that takes a tenth of a second at most.
void measureProducts(Probe& probe, HealthSampler& sampler, double seconds, RankFacts& facts) {
  const std::int64_t size = probe.onHost() ? 1024 : 8192;
  const auto left = probe.filled(probe.storage(), size * size), right = probe.filled(probe.storage(), size * size),
             result = probe.filled(probe.storage(), size * size);
  const auto matrix = [&](const std::unique_ptr<DeviceMemory>& memory) {
    return TensorView(memory->data(), probe.storage(), {size, size});
  };
  const Load load{[&] {
                    probe.backend().run(
                        kernels::Linear{.input = matrix(left), .weight = matrix(right), .output = matrix(result)},
                        probe.stream());
                  },
                  2.0 * static_cast<double>(size) * static_cast<double>(size * size)};
  const double begin = probe.rate(load, 0.2 * seconds);  // the way up to full clock
  sampler.sampleAndTake();
  const std::vector<double> rates = probe.rates(load, 0.8 * seconds);
  const HealthSummary health = sampler.sampleAndTake();
  const double end = median({rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2), rates.end()});
  facts.set(reading::matrixRate, end);
  facts.set(reading::matrixRateHeld, end / begin);
  const auto mean = [](const std::optional<Range>& range) { return range ? std::optional(range->mean) : std::nullopt; };
  const auto most = [](const std::optional<Range>& range) { return range ? std::optional(range->most) : std::nullopt; };
  facts.set(reading::deviceClock, mean(health.deviceClockMegahertz));
  facts.set(reading::devicePower, mean(health.devicePowerWatts));
  facts.set(reading::deviceTemperature, most(health.deviceTemperatureCelsius));
  facts.set(reading::deviceUtilisation, most(health.deviceUtilisation));
  facts.set(reading::thermalSlowdown, health.thermalSlowdownShare);
  facts.throttleReasons = health.throttleReasons;
  facts.set(reading::hostClock, mean(health.hostClockMegahertz));
  facts.set(reading::hostTemperature, most(health.hostTemperatureCelsius));
  facts.set(reading::hostThrottle, health.hostThrottleShare);
  facts.set(reading::stolen, health.stolenShare);
}

// Arrays much larger than caches: the memory itself is measured.
std::int64_t largeArrayBytes(const Probe& probe) {
  return probe.onHost() ? std::int64_t{128} << 20 : std::int64_t{512} << 20;
}

double readRate(Probe& probe, const TensorView& array, double seconds) {
  const DeviceMemory sum(probe.backend(), 8);
  const TensorView result(sum.data(), DType::f64, {1});
  return probe.rate(
      {[&] { probe.backend().run(kernels::SquaredNorm{.input = array, .result = result}, probe.stream()); },
       static_cast<double>(array.shape.count() * 4)},
      seconds);
}

void measureMemory(Probe& probe, double seconds, RankFacts& facts) {
  const std::int64_t bytes = largeArrayBytes(probe);
  const auto array = probe.filled(DType::f32, bytes / 4);
  const TensorView view(array->data(), DType::f32, {bytes / 4});
  const Load copy{[&] { probe.backend().run(kernels::Scale{.data = view, .factor = 1.0f}, probe.stream()); },
                  2.0 * static_cast<double>(bytes)};
  facts.set(reading::readBandwidth, readRate(probe, view, seconds));
  facts.set(reading::copyBandwidth, probe.rate(copy, seconds));

  const std::int64_t width = probe.onHost() ? 4096 : 8192;
  const std::int64_t height = bytes / base::byteSize(probe.storage()) / width;
  const TensorView matrix(array->data(), probe.storage(), {height, width});
  const auto vector = probe.filled(probe.storage(), width), result = probe.filled(probe.storage(), height);
  const Load product{[&] {
                       probe.backend().run(
                           kernels::Linear{.input = TensorView(vector->data(), probe.storage(), {1, width}),
                                           .weight = matrix,
                                           .output = TensorView(result->data(), probe.storage(), {1, height})},
                           probe.stream());
                     },
                     static_cast<double>(bytes)};
  facts.set(reading::gemvBandwidth, probe.rate(product, seconds));
  facts.set(reading::gemvToCopy, *facts.get(reading::gemvBandwidth) / *facts.get(reading::copyBandwidth));
}

void measureAttention(Probe& probe, double seconds, RankFacts& facts) {
  const std::int64_t batch = probe.onHost() ? 1 : 4, time = probe.onHost() ? 512 : 2048, heads = 16,
                     headSize = probe.onHost() ? 64 : 128;
  const std::int64_t count = batch * time * heads * headSize;
  const auto query = probe.filled(probe.storage(), count), output = probe.filled(probe.storage(), count);
  const auto sums = probe.filled(DType::f32, batch * heads * time);
  DeviceMemory starts(probe.backend(), batch * time * 4);
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(batch * time));
  probe.backend().copyToDevice(starts.data(), zeros.data(), batch * time * 4, probe.stream());
  const TensorView tensor(query->data(), probe.storage(), {batch, time, heads, headSize});
  const Load load{
      [&] {
        probe.backend().run(
            kernels::Attention{.query = tensor,
                               .key = tensor,
                               .value = tensor,
                               .documentStart = TensorView(starts.data(), DType::i32, {batch, time}),
                               .scale = 0.1f,
                               .output = TensorView(output->data(), probe.storage(), {batch, time, heads, headSize}),
                               .logSumExp = TensorView(sums->data(), DType::f32, {batch, heads, time})},
            probe.stream());
      },
      2.0 * static_cast<double>(batch * heads) * static_cast<double>(time * time * headSize)};
  facts.set(reading::attentionRate, probe.rate(load, seconds));
}

}  // namespace

double measureReadBandwidth(comm::Communicator& world, kernels::Backend& backend, kernels::Stream& stream,
                            double seconds) {
  Probe probe(world, backend, stream);
  const std::int64_t count = largeArrayBytes(probe) / 4;
  const auto array = probe.filled(DType::f32, count);
  return readRate(probe, TensorView(array->data(), DType::f32, {count}), seconds);
}

void measureCompute(comm::Communicator& world, kernels::Backend& backend, kernels::Stream& stream,
                    HealthSampler& sampler, double seconds, RankFacts& facts) {
  Probe probe(world, backend, stream);
  measureProducts(probe, sampler, seconds, facts);
  measureMemory(probe, seconds / 10, facts);
  measureAttention(probe, seconds / 10, facts);
}

}  // namespace tandem::telemetry
