#include "common/telemetry/health_sampler.h"

#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tandem::telemetry {
namespace {

using Clock = std::chrono::steady_clock;

struct Sample {
  Clock::time_point time = {};
  DeviceReading device = {};
  HostReading host = {};
  std::optional<double> ownSeconds = {};  // of processors, that this process has used
};

std::optional<double> processSeconds() {
  timespec time{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return std::nullopt;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class RangeSum {
 public:
  void add(const std::optional<double>& value) {
    if (!value) return;
    range_.least = count_ > 0 ? std::min(range_.least, *value) : *value;
    range_.most = count_ > 0 ? std::max(range_.most, *value) : *value;
    sum_ += *value;
    ++count_;
  }
  std::optional<Range> range() const {
    if (count_ == 0) return std::nullopt;
    return Range{range_.least, sum_ / static_cast<double>(count_), range_.most};
  }

 private:
  Range range_;
  double sum_ = 0;
  std::int64_t count_ = 0;
};

void lowerTo(std::optional<std::int64_t>& least, const std::optional<std::int64_t>& value) {
  if (value) least = std::min(least.value_or(*value), *value);
}

// What a counter grew by; nothing when it is absent at either end.
template <class Number>
std::optional<Number> growth(const std::optional<Number>& before, const std::optional<Number>& after) {
  if (!before || !after) return std::nullopt;
  return std::max(Number{0}, *after - *before);
}

std::optional<double> share(const std::optional<double>& part, const std::optional<double>& whole) {
  if (!part || !whole || *whole <= 0) return std::nullopt;
  return std::min(1.0, *part / *whole);
}

// A stretch of time as its samples come in.
class Stretch {
 public:
  explicit Stretch(const Sample& first) : first_(first), last_(first) { look(first); }

  void add(const Sample& sample) {
    const double seconds = std::chrono::duration<double>(sample.time - last_.time).count();
    if (last_.device.powerWatts && sample.device.powerWatts) {
      joulesByPower_ =
          joulesByPower_.value_or(0) + seconds * (*last_.device.powerWatts + *sample.device.powerWatts) / 2;
    }
    last_ = sample;
    look(sample);
  }

  const Sample& last() const { return last_; }

  HealthSummary summary() const {
    HealthSummary s;
    s.seconds = std::chrono::duration<double>(last_.time - first_.time).count();
    s.samples = samples_;
    s.deviceClockMegahertz = deviceClock_.range();
    s.devicePowerWatts = devicePower_.range();
    s.deviceTemperatureCelsius = deviceTemperature_.range();
    s.deviceUtilisation = deviceUtilisation_.range();
    if (knowsThrottleReasons_) s.throttleReasons = throttleReasons_;
    s.thermalSlowdownShare =
        share(growth(first_.device.thermalSlowdownSeconds, last_.device.thermalSlowdownSeconds), s.seconds);
    s.deviceJoules = growth(first_.device.energyJoules, last_.device.energyJoules);
    if (!s.deviceJoules) s.deviceJoules = joulesByPower_;
    s.leastDeviceFreeBytes = deviceFree_;
    s.hostClockMegahertz = hostClock_.range();
    s.hostTemperatureCelsius = hostTemperature_.range();
    const std::optional<double> processors = growth(first_.host.processorSeconds, last_.host.processorSeconds);
    s.stolenShare = share(growth(first_.host.stolenSeconds, last_.host.stolenSeconds), processors);
    s.busyShare = share(growth(first_.host.busySeconds, last_.host.busySeconds), processors);
    s.ownShare = share(growth(first_.ownSeconds, last_.ownSeconds), processors);
    s.hostThrottleShare =
        share(growth(first_.host.thermalThrottleSeconds, last_.host.thermalThrottleSeconds), processors);
    s.hostJoules = growth(first_.host.energyJoules, last_.host.energyJoules);
    s.majorFaults = growth(first_.host.majorFaults, last_.host.majorFaults);
    s.leastAvailableBytes = available_;
    return s;
  }

 private:
  void look(const Sample& sample) {
    ++samples_;
    deviceClock_.add(sample.device.clockMegahertz);
    devicePower_.add(sample.device.powerWatts);
    deviceTemperature_.add(sample.device.temperatureCelsius);
    deviceUtilisation_.add(sample.device.utilisation);
    if (sample.device.throttleReasons) {
      knowsThrottleReasons_ = true;
      throttleReasons_ |= *sample.device.throttleReasons;
    }
    lowerTo(deviceFree_, sample.device.freeBytes);
    hostClock_.add(sample.host.clockMegahertz);
    hostTemperature_.add(sample.host.temperatureCelsius);
    lowerTo(available_, sample.host.availableBytes);
  }

  Sample first_, last_;
  std::int64_t samples_ = 0;
  RangeSum deviceClock_, devicePower_, deviceTemperature_, deviceUtilisation_, hostClock_, hostTemperature_;
  bool knowsThrottleReasons_ = false;
  std::uint64_t throttleReasons_ = 0;  // of all samples together
  std::optional<std::int64_t> deviceFree_, available_;
  std::optional<double> joulesByPower_;
};

}  // namespace

class HealthSampler::Implementation {
 public:
  Implementation(std::unique_ptr<DeviceSensors> device, HostSensors host, std::chrono::milliseconds interval,
                 double mostShare)
      : device_(std::move(device)),
        host_(std::move(host)),
        interval_(interval),
        mostShare_(mostShare),
        stretch_(look()),
        thread_([this] { sampleUntilEnded(); }) {}

  ~Implementation() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  HealthSummary take() {
    const std::lock_guard lock(mutex_);
    const HealthSummary summary = stretch_.summary();
    stretch_ = Stretch(stretch_.last());
    return summary;
  }

  HealthSummary sampleAndTake() {
    sample();
    return take();
  }

 private:
  Sample look() {
    Sample sample;
    if (device_) sample.device = device_->read();
    sample.host = host_.read();
    sample.ownSeconds = processSeconds();
    sample.time = Clock::now();
    return sample;
  }

  // Readers of the sensors take turns; readers of the summary never wait for a driver.
  void sample() {
    const std::lock_guard looking(sensors_);
    const Sample seen = look();
    const std::lock_guard lock(mutex_);
    stretch_.add(seen);
  }

  void sampleUntilEnded() {
    std::unique_lock lock(mutex_);
    Clock::duration pause = interval_;
    while (!wake_.wait_for(lock, pause, [this] { return ended_; })) {
      lock.unlock();
      const Clock::time_point start = Clock::now();
      sample();
      const std::chrono::duration<double> needed = (Clock::now() - start) / mostShare_;
      pause = std::max<Clock::duration>(interval_, std::chrono::duration_cast<Clock::duration>(needed));
      lock.lock();
    }
  }

  std::unique_ptr<DeviceSensors> device_;
  HostSensors host_;
  std::chrono::milliseconds interval_;
  double mostShare_;
  std::mutex sensors_;
  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  bool ended_ = false;
  Stretch stretch_;
  std::thread thread_;
};

HealthSampler::HealthSampler(std::unique_ptr<DeviceSensors> device, HostSensors host,
                             std::chrono::milliseconds interval, double mostShare)
    : implementation_(std::make_unique<Implementation>(std::move(device), std::move(host), interval, mostShare)) {}
HealthSampler::~HealthSampler() = default;
HealthSummary HealthSampler::take() { return implementation_->take(); }
HealthSummary HealthSampler::sampleAndTake() { return implementation_->sampleAndTake(); }

}  // namespace tandem::telemetry
