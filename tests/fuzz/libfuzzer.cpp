// The way from libFuzzer, which has its own main, to a target.

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tandem::fuzz::fuzzOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
