#pragma once
// A device that is not there: states of the NVML that helpers/emulated_nvml.cpp makes.

#include <cstdlib>
#include <string>

#include "common/telemetry/device_sensors.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::telemetry {

inline const std::string emulatedUuid = "GPU-00112233-4455-6677-8899-aabbccddeeff";
// A DGX Spark under matrix products, as users have measured healthy ones; its memory is not supported.
inline const std::string healthySpark =
    "name NVIDIA GB10\nuuid " + emulatedUuid +
    "\ndriver 580.95.05\nclock 2405\nhighest_clock 3003\nmilliwatts 89000\n"
    "temperature 70\nutilisation 96\nreasons 0\nsoftware_thermal 1000000000\nhardware_thermal 0\n";

class EmulatedDevice {
 public:
  explicit EmulatedDevice(const std::string& state) {
    setState(state);
    setenv("TANDEM_EMULATED_NVML", (folder_.path() / "state").c_str(), 1);
  }
  void setState(const std::string& state) const { folder_.write("state", state); }
  // A line of the state with another value; nothing: without the line.
  static std::string changed(std::string state, const std::string& name, const std::string& value) {
    const std::size_t begin = state.find("\n" + name + " ") + 1, end = state.find('\n', begin);
    return state.replace(begin, end - begin + 1, value.empty() ? "" : name + " " + value + "\n");
  }
  static OpenedSensors open() {
    const char* build = std::getenv("TANDEM_BUILD_DIR");
    return openNvml("00112233445566778899aabbccddeeff",
                    std::string(build != nullptr ? build : ".") + "/tests/libemulated_nvml.so");
  }

 private:
  data::TemporaryFolder folder_;
};

}  // namespace tandem::telemetry
