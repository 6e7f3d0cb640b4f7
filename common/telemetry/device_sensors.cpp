#include "common/telemetry/device_sensors.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <utility>
#include <vector>

#include "common/telemetry/detail/nvml_interface.h"

namespace tandem::telemetry {

namespace throttle {

std::string text(std::uint64_t reasons) {
  static constexpr std::array<std::pair<std::uint64_t, const char*>, 5> names{{
      {softwarePowerCap, "software power cap"},
      {hardwareSlowdown, "hardware slowdown"},
      {softwareThermal, "software thermal slowdown"},
      {hardwareThermal, "hardware thermal slowdown"},
      {powerBrake, "power brake"},
  }};
  std::string found;
  for (const auto& [bit, name] : names) {
    if (reasons & bit) found += (found.empty() ? "" : ", ") + std::string(name);
  }
  return found.empty() ? "none" : found;
}

}  // namespace throttle

namespace {

using namespace detail::nvml;

// The library, loaded, and its functions. One that this version lacks is null, and what it would tell is unknown.
class Library {
 public:
  explicit Library(const std::string& file) : handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      whyNot_ = dlerror();
      return;
    }
    load(init, "nvmlInit_v2");
    load(shutdown, "nvmlShutdown");
    load(errorText, "nvmlErrorString");
    load(driverVersion, "nvmlSystemGetDriverVersion");
    load(deviceCount, "nvmlDeviceGetCount_v2");
    load(deviceAt, "nvmlDeviceGetHandleByIndex_v2");
    load(uuid, "nvmlDeviceGetUUID");
    load(name, "nvmlDeviceGetName");
    load(clock, "nvmlDeviceGetClockInfo");
    load(highestClock, "nvmlDeviceGetMaxClockInfo");
    load(power, "nvmlDeviceGetPowerUsage");
    load(temperature, "nvmlDeviceGetTemperature");
    load(utilisation, "nvmlDeviceGetUtilizationRates");
    load(throttleReasons, "nvmlDeviceGetCurrentClocksEventReasons");
    if (throttleReasons == nullptr) load(throttleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    load(energy, "nvmlDeviceGetTotalEnergyConsumption");
    load(memory, "nvmlDeviceGetMemoryInfo");
    load(fieldValues, "nvmlDeviceGetFieldValues");
    start();
  }
  ~Library() {
    if (started_ && shutdown != nullptr) shutdown();
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const std::string& whyNot() const { return whyNot_; }
  std::string describe(Result result) const {
    const char* text = errorText != nullptr ? errorText(result) : nullptr;
    return text != nullptr ? text : "error " + std::to_string(result);
  }

  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*errorText)(Result) = nullptr;
  Result (*driverVersion)(char*, unsigned) = nullptr;
  Result (*deviceCount)(unsigned*) = nullptr;
  Result (*deviceAt)(unsigned, Device*) = nullptr;
  Result (*uuid)(Device, char*, unsigned) = nullptr;
  Result (*name)(Device, char*, unsigned) = nullptr;
  Result (*clock)(Device, int, unsigned*) = nullptr;
  Result (*highestClock)(Device, int, unsigned*) = nullptr;
  Result (*power)(Device, unsigned*) = nullptr;
  Result (*temperature)(Device, int, unsigned*) = nullptr;
  Result (*utilisation)(Device, Utilisation*) = nullptr;
  Result (*throttleReasons)(Device, unsigned long long*) = nullptr;
  Result (*energy)(Device, unsigned long long*) = nullptr;
  Result (*memory)(Device, Memory*) = nullptr;
  Result (*fieldValues)(Device, int, FieldValue*) = nullptr;

 private:
  template <class Function>
  void load(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(handle_, symbol));
  }

  void start() {
    if (init == nullptr || deviceCount == nullptr || deviceAt == nullptr) {
      whyNot_ = "the library lacks nvmlInit_v2 or its list of devices: the driver is too old";
      return;
    }
    const Result result = init();
    started_ = result == success;
    if (!started_) whyNot_ = describe(result);
  }

  void* handle_;
  bool started_ = false;
  std::string whyNot_;
};

// What a function tells of a device; nothing where it is missing or refuses.
template <class Value>
std::optional<Value> ask(Result (*function)(Device, Value*), Device device) {
  Value value{};
  if (function == nullptr || function(device, &value) != success) return std::nullopt;
  return value;
}
template <class Value>
std::optional<Value> ask(Result (*function)(Device, int, Value*), Device device, int which) {
  Value value{};
  if (function == nullptr || function(device, which, &value) != success) return std::nullopt;
  return value;
}

std::optional<double> scaled(std::optional<unsigned long long> value, double factor) {
  if (!value) return std::nullopt;
  return static_cast<double>(*value) * factor;
}
std::optional<double> scaled(std::optional<unsigned> value, double factor) {
  return scaled(value ? std::optional<unsigned long long>(*value) : std::nullopt, factor);
}

std::optional<double> slowdownSeconds(const Library& library, Device device) {
  if (library.fieldValues == nullptr) return std::nullopt;
  FieldValue values[2];
  values[0].field = softwareThermalNanoseconds;
  values[1].field = hardwareThermalNanoseconds;
  if (library.fieldValues(device, 2, values) != success) return std::nullopt;
  std::optional<double> seconds;
  for (const FieldValue& value : values) {
    const bool isCounter = value.type == typeUnsignedLong || value.type == typeUnsignedLongLong;
    if (value.result != success || !isCounter) continue;
    seconds = seconds.value_or(0) + static_cast<double>(value.value.asUnsignedLongLong) * 1e-9;
  }
  return seconds;
}

class NvmlSensors : public DeviceSensors {
 public:
  NvmlSensors(std::unique_ptr<Library> library, Device device) : library_(std::move(library)), device_(device) {
    std::array<char, std::max(nameBytes, versionBytes)> text{};
    if (library_->name != nullptr && library_->name(device_, text.data(), nameBytes) == success) {
      identity_.name = text.data();
    }
    if (library_->driverVersion != nullptr && library_->driverVersion(text.data(), versionBytes) == success) {
      identity_.driver = text.data();
    }
    identity_.highestClockMegahertz = scaled(ask(library_->highestClock, device_, clockOfMultiprocessors), 1);
  }

  const DeviceIdentity& identity() const override { return identity_; }

  DeviceReading read() override {
    DeviceReading reading;
    reading.clockMegahertz = scaled(ask(library_->clock, device_, clockOfMultiprocessors), 1);
    reading.powerWatts = scaled(ask(library_->power, device_), 1e-3);
    reading.temperatureCelsius = scaled(ask(library_->temperature, device_, temperatureOfDie), 1);
    if (const auto share = ask(library_->utilisation, device_)) reading.utilisation = share->device / 100.0;
    if (const auto reasons = ask(library_->throttleReasons, device_)) reading.throttleReasons = *reasons;
    reading.thermalSlowdownSeconds = slowdownSeconds(*library_, device_);
    reading.energyJoules = scaled(ask(library_->energy, device_), 1e-3);
    const auto memory = ask(library_->memory, device_);
    if (memory && memory->total > 0) {
      reading.freeBytes = static_cast<std::int64_t>(memory->free);
      reading.totalBytes = static_cast<std::int64_t>(memory->total);
    }
    return reading;
  }

 private:
  std::unique_ptr<Library> library_;
  Device device_;
  DeviceIdentity identity_;
};

// "GPU-0123ABCD-..." and "0123abcd..." are the same.
std::string bareUuid(std::string text) {
  if (text.starts_with("GPU-")) text.erase(0, 4);
  std::erase(text, '-');
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Device findDevice(const Library& library, const std::string& uuid) {
  unsigned count = 0;
  if (library.uuid == nullptr || library.deviceCount(&count) != success) return nullptr;
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    std::array<char, uuidBytes> text{};
    if (library.deviceAt(index, &device) != success) continue;
    if (library.uuid(device, text.data(), uuidBytes) != success) continue;
    if (bareUuid(text.data()) == bareUuid(uuid)) return device;
  }
  return nullptr;
}

std::string libraryFile(const std::string& given) {
  if (!given.empty()) return given;
  const char* named = std::getenv("TANDEM_NVML_LIBRARY");
  return named != nullptr ? named : "libnvidia-ml.so.1";
}

}  // namespace

OpenedSensors openNvml(const std::string& uuid, const std::string& library) {
  auto loaded = std::make_unique<Library>(libraryFile(library));
  if (!loaded->whyNot().empty()) return {nullptr, "NVML cannot be used: " + loaded->whyNot()};
  const Device device = findDevice(*loaded, uuid);
  if (device == nullptr) return {nullptr, "NVML shows no device with the UUID " + uuid};
  return {std::make_unique<NvmlSensors>(std::move(loaded), device), ""};
}

}  // namespace tandem::telemetry
