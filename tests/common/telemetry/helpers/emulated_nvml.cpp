// A library with NVML's binary interface, for tests: one device, whose state stands in the file that
// TANDEM_EMULATED_NVML names, a line "name value" each, read anew at every call. What has no line is not supported, as
// on a real device.

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "common/telemetry/detail/nvml_interface.h"

namespace {

using namespace tandem::telemetry::detail::nvml;

constexpr Result notSupported = 3, notFound = 6;
int theDevice = 0;

std::optional<std::string> textOf(const std::string& name) {
  const char* file = std::getenv("TANDEM_EMULATED_NVML");
  std::ifstream lines(file != nullptr ? file : "");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + " ")) return line.substr(name.size() + 1);
  }
  return std::nullopt;
}

template <class Number>
Result give(const std::string& name, Number* value) {
  const std::optional<std::string> text = textOf(name);
  if (!text) return notSupported;
  *value = static_cast<Number>(std::stoull(*text));
  return success;
}

Result give(const std::string& name, char* target, unsigned bytes) {
  const std::optional<std::string> text = textOf(name);
  if (!text || text->size() >= bytes) return notSupported;
  std::strcpy(target, text->c_str());
  return success;
}

}  // namespace

extern "C" {

Result nvmlInit_v2() { return textOf("name") ? success : notFound; }
Result nvmlShutdown() { return success; }
const char* nvmlErrorString(Result result) { return result == notFound ? "Driver Not Loaded" : "Not Supported"; }
Result nvmlSystemGetDriverVersion(char* text, unsigned bytes) { return give("driver", text, bytes); }
Result nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return success;
}
Result nvmlDeviceGetHandleByIndex_v2(unsigned, Device* device) {
  *device = &theDevice;
  return success;
}
Result nvmlDeviceGetUUID(Device, char* text, unsigned bytes) { return give("uuid", text, bytes); }
Result nvmlDeviceGetName(Device, char* text, unsigned bytes) { return give("name", text, bytes); }
Result nvmlDeviceGetClockInfo(Device, int, unsigned* value) { return give("clock", value); }
Result nvmlDeviceGetMaxClockInfo(Device, int, unsigned* value) { return give("highest_clock", value); }
Result nvmlDeviceGetPowerUsage(Device, unsigned* value) { return give("milliwatts", value); }
Result nvmlDeviceGetTemperature(Device, int, unsigned* value) { return give("temperature", value); }
Result nvmlDeviceGetUtilizationRates(Device, Utilisation* value) { return give("utilisation", &value->device); }
Result nvmlDeviceGetCurrentClocksEventReasons(Device, unsigned long long* value) { return give("reasons", value); }
Result nvmlDeviceGetTotalEnergyConsumption(Device, unsigned long long* value) { return give("millijoules", value); }
Result nvmlDeviceGetMemoryInfo(Device, Memory* value) {
  const Result result = give("memory_total", &value->total);
  return result == success ? give("memory_free", &value->free) : result;
}
Result nvmlDeviceGetFieldValues(Device, int count, FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    const bool software = values[i].field == softwareThermalNanoseconds;
    values[i].type = typeUnsignedLongLong;
    values[i].result = give(software ? "software_thermal" : "hardware_thermal", &values[i].value.asUnsignedLongLong);
  }
  return success;
}

}  // extern "C"
