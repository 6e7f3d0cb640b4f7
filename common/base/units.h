#pragma once
// Quantities as people write and read them: durations, byte counts, large numbers.

#include <chrono>
#include <cstdint>
#include <string>

namespace tandem::base {

// "90s", "30m", "2h", "1d", or a bare number of seconds. Throws Error of kind usage otherwise.
std::chrono::seconds parseDuration(const std::string& text);

std::string formatDuration(double seconds);   // "2h 05m", "3m 20s", "4.2 s"
std::string formatBytes(std::int64_t bytes);  // "3.2 GiB"
std::string formatCount(double count);        // "124.4 M", and "1.2 B" for 10^9
std::string formatFlops(double operations);   // "15.2 GFLOP"

}  // namespace tandem::base
