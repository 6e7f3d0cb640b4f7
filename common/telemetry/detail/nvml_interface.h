#pragma once
// The few declarations of NVIDIA's management library that we call, by its documented binary interface, so that neither
// its header nor a driver is needed to build.

#include <cstdint>

namespace tandem::telemetry::detail::nvml {

using Result = int;
constexpr Result success = 0;

using Device = void*;
constexpr int clockOfMultiprocessors = 1;
constexpr int temperatureOfDie = 0;
constexpr unsigned uuidBytes = 96, nameBytes = 96, versionBytes = 80;

// Counters of time spent slowed down, in nanoseconds.
constexpr unsigned softwareThermalNanoseconds = 269, hardwareThermalNanoseconds = 270;

struct Utilisation {  // percent
  unsigned device = 0, memory = 0;
};
struct Memory {  // bytes
  unsigned long long total = 0, free = 0, used = 0;
};
struct FieldValue {
  unsigned field = 0, scope = 0;
  long long timestamp = 0, latency = 0;
  int type = 0;
  Result result = success;
  union {
    double asDouble;
    unsigned asUnsigned;
    unsigned long long asUnsignedLongLong;
  } value = {};
};
static_assert(sizeof(FieldValue) == 40, "the binary interface has no padding of its own");
constexpr int typeUnsignedLong = 2, typeUnsignedLongLong = 3;

}  // namespace tandem::telemetry::detail::nvml
