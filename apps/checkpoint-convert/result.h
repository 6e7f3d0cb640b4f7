#pragma once
// What a command reports at its end.

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/shared/program.h"

namespace tandem::convert {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// A line for people, by rank 0, or the document under --json.
void report(const app::CommonOptions& common, const Json& document, const std::string& line);

// "538.1 MB in 1.2 s, 448 MB/s"
std::string describeWork(std::int64_t bytes, double seconds);

inline double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Bytes of all files at a path, which is a file or a folder.
std::int64_t bytesAt(const std::string& path);

}  // namespace tandem::convert
