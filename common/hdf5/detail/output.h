#pragma once
// Where a file under construction goes: a file driver of our own, in memory or on disk.
//
// HDF5 must never see a failed write: after a failed H5Fclose its own clean-up crashes, which would turn a full disk
// into a segmentation fault. So the first failure is remembered here, and thrown by whoever writes or closes next;
// what HDF5 writes after it is kept in memory, so that HDF5 can always end in peace.

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/hdf5/hdf5.h"

namespace tandem::hdf5::detail {

class Output {
 public:
  // In memory.
  Output() = default;
  // On disk: creates the file or empties it. Throws Error of kind file.
  explicit Output(const std::filesystem::path& path);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  // A property list that makes H5Fcreate write here. The output must outlive the file.
  Handle accessList();

  bool inMemory() const { return !onDisk_; }
  // Throws the remembered failure.
  void throwFailure() const;
  std::int64_t size() const { return size_; }
  // Bytes as written; zeros where nothing was.
  void read(std::int64_t offset, std::span<std::byte> target) const;
  void write(std::int64_t offset, std::span<const std::byte> source);
  void resize(std::int64_t size);
  // Closes the file on disk.
  void close();

 private:
  static constexpr std::int64_t pageSize = 4096;
  using Page = std::vector<std::byte>;

  void remember(const char* action, int errorNumber);
  void readDisk(std::int64_t offset, std::span<std::byte> target) const;
  void writePages(std::int64_t offset, std::span<const std::byte> source);

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool onDisk_ = false;
  std::int64_t size_ = 0;
  std::map<std::int64_t, Page> pages_;  // what is held in memory, by offset / pageSize
  std::string failure_;
};

}  // namespace tandem::hdf5::detail
