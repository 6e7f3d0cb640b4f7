#include "common/hdf5/detail/library.h"

namespace tandem::hdf5 {
namespace detail {
namespace {

std::recursive_mutex& libraryMutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

herr_t collect(unsigned /*depth*/, const H5E_error2_t* entry, void* target) {
  auto& text = *static_cast<std::string*>(target);
  const std::string description = entry->desc ? entry->desc : "";
  if (description.empty()) return 0;
  if (!text.empty()) text += "; ";
  text += description;
  return 0;
}

std::string takeErrorText() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, &collect, &text);
  H5Eclear2(H5E_DEFAULT);
  return text;
}

}  // namespace

Lock::Lock() : lock_(libraryMutex()) {
  static const bool started = [] {
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors become exceptions instead of text on stderr
    H5PLset_loading_state(0);                     // a foreign file must not make us load code
    return true;
  }();
  (void)started;
}

void fail(base::ErrorKind kind, const std::string& what) {
  const std::string reasons = takeErrorText();
  throw base::Error(kind, reasons.empty() ? what : what + " (HDF5: " + reasons + ")");
}

}  // namespace detail

Handle::Handle(Handle&& other) noexcept : id_(other.id_) { other.id_ = -1; }

Handle& Handle::operator=(Handle&& other) noexcept {
  std::swap(id_, other.id_);
  return *this;
}

Handle::~Handle() {
  if (id_ < 0) return;
  const detail::Lock lock;
  if (H5Iis_valid(static_cast<hid_t>(id_)) > 0) H5Idec_ref(static_cast<hid_t>(id_));
  H5Eclear2(H5E_DEFAULT);
}

std::string libraryVersion() {
  const detail::Lock lock;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

}  // namespace tandem::hdf5
