#include "common/hdf5/detail/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/hdf5/detail/library.h"

namespace tandem::hdf5::detail {
namespace {

// HDF5's view of an output; its first member must be the library's own part.
struct DriverFile {
  H5FD_t library;
  Output* output;
  haddr_t end;  // of the address space that HDF5 has given out
};

struct DriverSettings {
  Output* output;
};

DriverFile* own(H5FD_t* file) { return reinterpret_cast<DriverFile*>(file); }
const DriverFile* own(const H5FD_t* file) { return reinterpret_cast<const DriverFile*>(file); }

H5FD_t* openFile(const char* /*name*/, unsigned /*flags*/, hid_t access, haddr_t /*limit*/) {
  const auto* settings = static_cast<const DriverSettings*>(H5Pget_driver_info(access));
  if (settings == nullptr) return nullptr;
  return reinterpret_cast<H5FD_t*>(new DriverFile{H5FD_t{}, settings->output, 0});
}

herr_t closeFile(H5FD_t* file) {
  delete own(file);
  return 0;
}

herr_t query(const H5FD_t* /*file*/, unsigned long* flags) {
  if (flags != nullptr) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  }
  return 0;
}

haddr_t allocatedEnd(const H5FD_t* file, H5FD_mem_t /*type*/) { return own(file)->end; }

herr_t setAllocatedEnd(H5FD_t* file, H5FD_mem_t /*type*/, haddr_t end) {
  own(file)->end = end;
  return 0;
}

haddr_t fileEnd(const H5FD_t* file, H5FD_mem_t /*type*/) { return static_cast<haddr_t>(own(file)->output->size()); }

herr_t readBytes(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address, std::size_t size,
                 void* target) {
  own(file)->output->read(static_cast<std::int64_t>(address), {static_cast<std::byte*>(target), size});
  return 0;
}

herr_t writeBytes(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address, std::size_t size,
                  const void* source) {
  own(file)->output->write(static_cast<std::int64_t>(address), {static_cast<const std::byte*>(source), size});
  return 0;
}

herr_t truncateFile(H5FD_t* file, hid_t /*transfer*/, hbool_t /*closing*/) {
  own(file)->output->resize(static_cast<std::int64_t>(own(file)->end));
  return 0;
}

hid_t registeredDriver() {
  static const hid_t driver = [] {
    H5FD_class_t description{};
#if H5_VERSION_GE(1, 13, 2)
    description.version = H5FD_CLASS_VERSION;
    description.value = 600;  // of the range that the library leaves to users
#endif
    description.name = "tandem";
    description.maxaddr = (haddr_t{1} << 62) - 1;
    description.fc_degree = H5F_CLOSE_STRONG;
    description.fapl_size = sizeof(DriverSettings);
    description.open = &openFile;
    description.close = &closeFile;
    description.query = &query;
    description.get_eoa = &allocatedEnd;
    description.set_eoa = &setAllocatedEnd;
    description.get_eof = &fileEnd;
    description.read = &readBytes;
    description.write = &writeBytes;
    description.truncate = &truncateFile;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), std::begin(description.fl_map));
    return check(H5FDregister(&description), base::ErrorKind::device, "cannot register the file driver");
  }();
  return driver;
}

}  // namespace

Output::Output(const std::filesystem::path& path) : path_(path), onDisk_(true) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw base::Error(base::ErrorKind::file, "cannot create '" + path.string() + "': " + base::systemErrorText(errno));
  }
}

Output::~Output() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Handle Output::accessList() {
  const base::ErrorKind kind = base::ErrorKind::device;
  Handle list(check(H5Pcreate(H5P_FILE_ACCESS), kind, "cannot make a property list"));
  const DriverSettings settings{this};
  check(H5Pset_driver(raw(list), registeredDriver(), &settings), kind, "cannot set the file driver");
  return list;
}

void Output::throwFailure() const {
  if (!failure_.empty()) throw base::Error(base::ErrorKind::file, failure_);
}

void Output::remember(const char* action, int errorNumber) {
  if (failure_.empty()) {
    failure_ = std::string("cannot ") + action + " '" + path_.string() + "': " + base::systemErrorText(errorNumber);
  }
}

void Output::readDisk(std::int64_t offset, std::span<std::byte> target) const {
  std::size_t done = 0;
  while (descriptor_ >= 0 && done < target.size()) {
    const ssize_t got =
        ::pread(descriptor_, target.data() + done, target.size() - done, offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  std::memset(target.data() + done, 0, target.size() - done);
}

void Output::read(std::int64_t offset, std::span<std::byte> target) const {
  readDisk(offset, target);
  const std::int64_t end = offset + static_cast<std::int64_t>(target.size());
  for (auto page = pages_.lower_bound(offset / pageSize); page != pages_.end(); ++page) {
    const std::int64_t pageBegin = page->first * pageSize;
    if (pageBegin >= end) break;
    const std::int64_t from = std::max(offset, pageBegin);
    const std::int64_t to = std::min(end, pageBegin + pageSize);
    std::memcpy(target.data() + (from - offset), page->second.data() + (from - pageBegin),
                static_cast<std::size_t>(to - from));
  }
}

void Output::writePages(std::int64_t offset, std::span<const std::byte> source) {
  const std::int64_t end = offset + static_cast<std::int64_t>(source.size());
  for (std::int64_t from = offset; from < end;) {
    const std::int64_t pageBegin = from / pageSize * pageSize;
    const std::int64_t to = std::min(end, pageBegin + pageSize);
    Page& page = pages_[from / pageSize];
    if (page.empty()) {
      page.resize(pageSize);
      readDisk(pageBegin, page);
    }
    std::memcpy(page.data() + (from - pageBegin), source.data() + (from - offset), static_cast<std::size_t>(to - from));
    from = to;
  }
}

void Output::write(std::int64_t offset, std::span<const std::byte> source) {
  size_ = std::max(size_, offset + static_cast<std::int64_t>(source.size()));
  if (!onDisk_ || !failure_.empty()) {
    writePages(offset, source);
    return;
  }
  std::size_t done = 0;
  while (done < source.size()) {
    const ssize_t put =
        ::pwrite(descriptor_, source.data() + done, source.size() - done, offset + static_cast<std::int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      remember("write", errno);
      writePages(offset + static_cast<std::int64_t>(done), source.subspan(done));
      return;
    }
    done += static_cast<std::size_t>(put);
  }
}

void Output::resize(std::int64_t size) {
  size_ = size;
  if (onDisk_ && failure_.empty() && ::ftruncate(descriptor_, size) != 0) remember("set the size of", errno);
}

void Output::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0) remember("close", errno);
}

}  // namespace tandem::hdf5::detail
