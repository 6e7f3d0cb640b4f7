#pragma once
// HDF5 behind RAII: handles that close themselves, and failures that are Errors carrying HDF5's own error stack.
//
// Reading foreign files is the dangerous half: every size, type and link is checked before it is used, since a damaged
// file must be an Error of kind badData, never a crash. Files are written by one process each (no shared files).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/shape.h"

namespace tandem::hdf5 {

using Id = std::int64_t;  // hid_t, so that users of this header need no HDF5 header

// Owns one HDF5 identifier of any kind.
class Handle {
 public:
  Handle() = default;
  explicit Handle(Id id) : id_(id) {}
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();
  Id id() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  Id id_ = -1;
};

// One source of a virtual dataset: `count` elements of dataset `path` in `file`, from element `sourceBegin` of that 1-D
// dataset, become the elements from `targetBegin` on of the flattened virtual dataset.
struct VirtualPiece {
  std::string file;  // relative to the folder of the virtual dataset's file
  std::string path;
  std::int64_t sourceCount = 0;  // length of the whole source dataset
  std::int64_t sourceBegin = 0;
  std::int64_t targetBegin = 0;
  std::int64_t count = 0;
};

class Dataset {
 public:
  Dataset(Handle handle, std::string place) : handle_(std::move(handle)), place_(std::move(place)) {}

  base::DType type() const;  // bfloat16 when uint16 with the attribute dtype = "bfloat16"
  base::Shape shape() const;
  std::int64_t count() const { return shape().count(); }
  bool isVirtual() const;
  // Reads `count` elements of the flattened (row-major) dataset, from element `begin`, as they are stored (no conversion).
  void read(std::int64_t begin, std::int64_t count, void* target) const;
  void write(std::int64_t begin, std::int64_t count, const void* source);
  // Appends to a 1-D dataset made with createGrowing.
  void append(std::int64_t count, const void* source);

 private:
  Handle handle_;
  std::string place_;  // "file.h5:/path" for messages
};

class File {
 public:
  enum class Storage {
    disk,
    memory,  // the file is built in memory; image() gives its bytes
  };
  static File create(const std::filesystem::path& path, Storage storage = Storage::disk);
  // Kind badData for a file that is no HDF5 or is truncated, kind file when the system refuses.
  static File open(const std::filesystem::path& path);

  bool has(const std::string& path) const;
  // Names of the members of a group, sorted.
  std::vector<std::string> members(const std::string& group) const;

  // Missing groups on the way are made.
  Dataset create(const std::string& path, base::DType type, const base::Shape& shape);
  // A 1-D dataset, chunked, that append makes longer.
  Dataset createGrowing(const std::string& path, base::DType type, std::int64_t chunk);
  Dataset createVirtual(const std::string& path, base::DType type, const base::Shape& shape,
                        std::span<const VirtualPiece> pieces);
  Dataset dataset(const std::string& path) const;

  void writeText(const std::string& path, const std::string& text);
  std::string readText(const std::string& path) const;

  void setAttribute(const std::string& object, const std::string& name, const std::string& value);
  void setAttribute(const std::string& object, const std::string& name, std::int64_t value);
  // Empty when there is none; kind badData when it has another type.
  std::optional<std::string> textAttribute(const std::string& object, const std::string& name) const;
  std::optional<std::int64_t> integerAttribute(const std::string& object, const std::string& name) const;

  // The bytes of a file held in memory.
  std::vector<std::byte> image();
  // Flushes and closes; throws where the destructor could not.
  void close();
  const std::filesystem::path& path() const { return path_; }

 private:
  File(Handle handle, std::filesystem::path path) : handle_(std::move(handle)), path_(std::move(path)) {}

  Handle handle_;
  std::filesystem::path path_;
};

std::string libraryVersion();

}  // namespace tandem::hdf5
