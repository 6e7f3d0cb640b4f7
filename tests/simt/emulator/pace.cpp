#include <array>
#include <cstdlib>
#include <thread>
#include "tests/simt/emulator/runtime.h"

namespace simt {
namespace {
std::chrono::milliseconds least(Kind kind) {
  constexpr std::array<const char*, 3> names{"SIMT_KERNEL_MILLISECONDS", "SIMT_PRODUCT_MILLISECONDS",
                                             "SIMT_VECTOR_PRODUCT_MILLISECONDS"};
  const char* const text = getenv(names[static_cast<size_t>(kind)]);
  return std::chrono::milliseconds(text ? atoi(text) : 0);
}
}  // namespace

Pace::Pace(Kind kind) : end_(std::chrono::steady_clock::now() + least(kind)) {}
Pace::~Pace() { std::this_thread::sleep_until(end_); }
}  // namespace simt
