// Loads through the kernel contract, so that what is measured is what the training will run.

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "common/runtime/executable.h"
#include "common/telemetry/median.h"
#include "common/telemetry/preflight_probes.h"

namespace tandem::telemetry {
namespace {

using base::DType;
using Clock = std::chrono::steady_clock;
using kernels::TensorView;
using runtime::DeviceMemory;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Work that is done again and again, how much it is, and what it works on.
struct Load {
  std::function<void()> enqueue;
  double amount = 0;
  std::vector<std::shared_ptr<DeviceMemory>> memory = {};
};

// A run that takes so long is no longer dominated by its start.
constexpr double longEnough = 0.01;

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

  // The load of the first size that is long enough on the quickest rank, or of the last one: what keeps a GPU busy
  // would take a slow device minutes. The same size on all ranks.
  template <class Size, class Make>
  Load grown(const std::vector<Size>& sizes, const Make& make) {
    Load load = make(sizes.front());
    for (std::size_t i = 1; i < sizes.size() && quickestSeconds(load) < longEnough; ++i) load = make(sizes[i]);
    return load;
  }

  bool onHost() const { return backend_.isHostMemory(); }
  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return stream_; }
  DType storage() const { return storage_; }

  std::shared_ptr<DeviceMemory> filled(DType type, std::int64_t count) {
    auto memory = std::make_shared<DeviceMemory>(backend_, count * base::byteSize(type));
    const float value = 1e-3f;
    backend_.run(kernels::Fill{.target = TensorView(memory->data(), type, {count}), .value = value}, stream_);
    return memory;
  }

 private:
  double quickestSeconds(const Load& load) {
    const double rate = rates(load, 0).front();
    return load.amount / comm::allReduceScalar(world_, rate, comm::Reduction::maximum);
  }

  comm::Communicator& world_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  DType storage_;
};

Load productOfSquares(Probe& probe, std::int64_t size) {
  const auto left = probe.filled(probe.storage(), size * size), right = probe.filled(probe.storage(), size * size),
             result = probe.filled(probe.storage(), size * size);
  const auto matrix = [&](const std::shared_ptr<DeviceMemory>& memory) {
    return TensorView(memory->data(), probe.storage(), {size, size});
  };
  const kernels::Linear product{.input = matrix(left), .weight = matrix(right), .output = matrix(result)};
  return {[&probe, product] { probe.backend().run(product, probe.stream()); },
          2.0 * static_cast<double>(size) * static_cast<double>(size * size),
          {left, right, result}};
}

void measureProducts(Probe& probe, HealthSampler& sampler, double seconds, RankFacts& facts) {
  const std::vector<std::int64_t> sizes =
      probe.onHost() ? std::vector<std::int64_t>{1024} : std::vector<std::int64_t>{64, 256, 1024, 4096, 8192};
  const Load load = probe.grown(sizes, [&](std::int64_t size) { return productOfSquares(probe, size); });
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

// Bytes of an array: in the end much more than caches hold, so that the memory itself is measured.
std::vector<std::int64_t> arraySizes(const Probe& probe) {
  if (probe.onHost()) return {std::int64_t{128} << 20};
  return {std::int64_t{128} << 10, std::int64_t{2} << 20, std::int64_t{32} << 20, std::int64_t{512} << 20};
}

// Reads an array of float32 and writes it.
Load copyOf(Probe& probe, std::int64_t bytes) {
  const auto array = probe.filled(DType::f32, bytes / 4);
  const kernels::Scale copy{.data = TensorView(array->data(), DType::f32, {bytes / 4}), .factor = 1.0f};
  return {[&probe, copy] { probe.backend().run(copy, probe.stream()); }, 2.0 * static_cast<double>(bytes), {array}};
}

Load readingOf(Probe& probe, const std::shared_ptr<DeviceMemory>& array, std::int64_t bytes) {
  const auto sum = std::make_shared<DeviceMemory>(probe.backend(), 8);
  const kernels::SquaredNorm reading{.input = TensorView(array->data(), DType::f32, {bytes / 4}),
                                     .result = TensorView(sum->data(), DType::f64, {1})};
  return {
      [&probe, reading] { probe.backend().run(reading, probe.stream()); }, static_cast<double>(bytes), {array, sum}};
}

// The array as a matrix, times a vector.
Load vectorProductOf(Probe& probe, const std::shared_ptr<DeviceMemory>& array, std::int64_t bytes) {
  const std::int64_t width = probe.onHost() ? 4096 : 8192;
  const std::int64_t height = bytes / base::byteSize(probe.storage()) / width;
  const auto vector = probe.filled(probe.storage(), width), result = probe.filled(probe.storage(), height);
  const kernels::Linear product{.input = TensorView(vector->data(), probe.storage(), {1, width}),
                                .weight = TensorView(array->data(), probe.storage(), {height, width}),
                                .output = TensorView(result->data(), probe.storage(), {1, height})};
  return {[&probe, product] { probe.backend().run(product, probe.stream()); },
          static_cast<double>(bytes),
          {array, vector, result}};
}

void measureMemory(Probe& probe, double seconds, RankFacts& facts) {
  const Load copy = probe.grown(arraySizes(probe), [&](std::int64_t bytes) { return copyOf(probe, bytes); });
  const std::shared_ptr<DeviceMemory> array = copy.memory.front();
  const auto bytes = static_cast<std::int64_t>(copy.amount / 2);
  facts.set(reading::readBandwidth, probe.rate(readingOf(probe, array, bytes), seconds));
  facts.set(reading::copyBandwidth, probe.rate(copy, seconds));
  facts.set(reading::gemvBandwidth, probe.rate(vectorProductOf(probe, array, bytes), seconds));
  facts.set(reading::gemvToCopy, *facts.get(reading::gemvBandwidth) / *facts.get(reading::copyBandwidth));
}

struct AttentionSize {
  std::int64_t batch = 1, time = 0, heads = 0;
};

Load attentionOf(Probe& probe, const AttentionSize& size) {
  const std::int64_t headSize = probe.onHost() ? 64 : 128, batch = size.batch, time = size.time, heads = size.heads;
  const std::int64_t count = batch * time * heads * headSize;
  const auto query = probe.filled(probe.storage(), count), output = probe.filled(probe.storage(), count);
  const auto sums = probe.filled(DType::f32, batch * heads * time);
  const auto starts = std::make_shared<DeviceMemory>(probe.backend(), batch * time * 4);
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(batch * time));
  probe.backend().copyToDevice(starts->data(), zeros.data(), batch * time * 4, probe.stream());
  const TensorView tensor(query->data(), probe.storage(), {batch, time, heads, headSize});
  const kernels::Attention attention{
      .query = tensor,
      .key = tensor,
      .value = tensor,
      .documentStart = TensorView(starts->data(), DType::i32, {batch, time}),
      .scale = 0.1f,
      .output = TensorView(output->data(), probe.storage(), {batch, time, heads, headSize}),
      .logSumExp = TensorView(sums->data(), DType::f32, {batch, heads, time})};
  return {[&probe, attention] { probe.backend().run(attention, probe.stream()); },
          2.0 * static_cast<double>(batch * heads) * static_cast<double>(time * time * headSize),
          {query, output, sums, starts}};
}

void measureAttention(Probe& probe, double seconds, RankFacts& facts) {
  const std::vector<AttentionSize> ofHost{{.time = 512, .heads = 16}};
  const std::vector<AttentionSize> ofDevice{{.time = 64, .heads = 1},
                                            {.time = 128, .heads = 4},
                                            {.time = 512, .heads = 16},
                                            {.batch = 4, .time = 2048, .heads = 16}};
  const Load load = probe.grown(probe.onHost() ? ofHost : ofDevice,
                                [&](const AttentionSize& size) { return attentionOf(probe, size); });
  facts.set(reading::attentionRate, probe.rate(load, seconds));
}

}  // namespace

double measureReadBandwidth(comm::Communicator& world, kernels::Backend& backend, kernels::Stream& stream,
                            double seconds) {
  Probe probe(world, backend, stream);
  const Load load = probe.grown(arraySizes(probe), [&](std::int64_t bytes) {
    return readingOf(probe, probe.filled(DType::f32, bytes / 4), bytes);
  });
  return probe.rate(load, seconds);
}

void measureCompute(comm::Communicator& world, kernels::Backend& backend, kernels::Stream& stream,
                    HealthSampler& sampler, double seconds, RankFacts& facts) {
  Probe probe(world, backend, stream);
  measureProducts(probe, sampler, seconds, facts);
  measureMemory(probe, seconds / 10, facts);
  measureAttention(probe, seconds / 10, facts);
}

}  // namespace tandem::telemetry
