#pragma once
// The library itself: started once, one thread at a time in it, and its error stack turned into text.

#include <hdf5.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "common/base/error.h"
#include "common/hdf5/hdf5.h"

namespace tandem::hdf5::detail {

// Held around every call of the library, which is built without thread safety on Debian. Starts it on first use.
class Lock {
 public:
  Lock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

// "what (HDF5: its own reasons, the innermost last)", thrown with the kind; empties the library's error stack.
[[noreturn]] void fail(base::ErrorKind kind, const std::string& what);

// The argument when it is no failure (negative values are), else fail().
template <class Result>
Result check(Result result, base::ErrorKind kind, const std::string& what) {
  if (result < 0) fail(kind, what);
  return result;
}

inline hid_t raw(const Handle& handle) { return static_cast<hid_t>(handle.id()); }

}  // namespace tandem::hdf5::detail
