#pragma once
// HDF5 behind RAII: handles that close themselves, and failures that are Errors carrying HDF5's own error stack.
//
// Reading foreign files is the dangerous half: every size, type and link is checked before it is used, since a damaged
// file must be an Error of kind badData, never a crash. Soft and external links, external storage and filter plugins
// are refused. Files are written by one process each (no shared files). Any thread may call; one at a time gets in. A
// failed write (a full disk) is an Error of kind file, and leaves the library in peace.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/shape.h"

namespace tandem::hdf5 {

namespace detail {
class Output;
}

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
  // Gives the identifier away without closing it.
  Id release() { return std::exchange(id_, -1); }
  explicit operator bool() const { return id_ >= 0; }

 private:
  Id id_ = -1;
};

// One source of a virtual dataset: `count` elements of dataset `path` in `file`, from element `sourceBegin` of that 1-D
// dataset, become the elements from `targetBegin` on of the flattened virtual dataset; and with repeats > 1 as many
// such runs, one after the other in the source, become columns of a matrix, whose width is the stride.
struct VirtualPiece {
  std::string file;  // relative to the folder of the virtual dataset's file
  std::string path;
  std::int64_t sourceCount = 0;  // length of the whole source dataset
  std::int64_t sourceBegin = 0;
  std::int64_t targetBegin = 0;
  std::int64_t count = 0;
  std::int64_t repeats = 1;
  std::int64_t stride = 0;
};

// Whether a dataset that is opened may be virtual: put together from datasets of other files. A missing or foreign
// source reads as zeros without an error, so they are allowed only where they are expected.
enum class VirtualSources {
  refused,
  shards,  // files named shard-* in the same folder, all there, long enough and not virtual themselves
};

class Dataset {
 public:
  Dataset(Handle handle, std::string place, std::shared_ptr<detail::Output> output = nullptr)
      : handle_(std::move(handle)), place_(std::move(place)), output_(std::move(output)) {}

  base::DType type() const;  // bfloat16 when uint16 with the attribute dtype = "bfloat16"
  base::Shape shape() const;
  std::int64_t count() const { return shape().count(); }
  bool isVirtual() const;
  // Where the elements lie in the file, for one made with createReserved.
  std::int64_t offset() const;
  // Reads `count` elements of the flattened (row-major) dataset, from element `begin`, as they are stored (no
  // conversion).
  void read(std::int64_t begin, std::int64_t count, void* target) const;
  void write(std::int64_t begin, std::int64_t count, const void* source);
  // Appends to a 1-D dataset made with createGrowing.
  void append(std::int64_t count, const void* source);

 private:
  Handle handle_;
  std::string place_;                       // "file.h5:/path" for messages
  std::shared_ptr<detail::Output> output_;  // of a file under construction
};

class File {
 public:
  enum class Storage {
    disk,
    memory,  // the file is built in memory; image() gives its bytes, and nothing is written under its path
  };
  File(File&& other) noexcept = default;
  File& operator=(File&& other) noexcept;

  // Empties a file that is there.
  static File create(const std::filesystem::path& path, Storage storage = Storage::disk);
  // Kind badData for a file that is no HDF5 or is truncated, kind file when the system refuses.
  static File open(const std::filesystem::path& path);

  // False for links that are not followed, too.
  bool has(const std::string& path) const;
  // Names of the members of a group, sorted.
  std::vector<std::string> members(const std::string& group) const;

  // Missing groups on the way are made.
  Dataset create(const std::string& path, base::DType type, const base::Shape& shape);
  // A 1-D dataset, chunked, that append makes longer.
  Dataset createGrowing(const std::string& path, base::DType type, std::int64_t chunk);
  Dataset createVirtual(const std::string& path, base::DType type, const base::Shape& shape,
                        std::span<const VirtualPiece> pieces);
  // Only the room in the file: somebody else writes count() elements at offset(). At least one element.
  Dataset createReserved(const std::string& path, base::DType type, const base::Shape& shape);
  Dataset dataset(const std::string& path, VirtualSources sources = VirtualSources::refused) const;

  void writeText(const std::string& path, const std::string& text);
  std::string readText(const std::string& path) const;

  void setAttribute(const std::string& object, const std::string& name, const std::string& value);
  void setAttribute(const std::string& object, const std::string& name, std::int64_t value);
  // Empty when there is none; kind badData when it has another type.
  std::optional<std::string> textAttribute(const std::string& object, const std::string& name) const;
  std::optional<std::int64_t> integerAttribute(const std::string& object, const std::string& name) const;

  // A file held in memory is closed by either of these. Its bytes, or its size and part of its bytes; those of reserved
  // datasets are zeros and take no memory until they are copied here.
  std::vector<std::byte> image();
  std::int64_t imageSize();
  void copyImage(std::int64_t offset, std::span<std::byte> target);

  // Flushes and closes; throws where the destructor could not. Datasets still held are closed as well.
  void close();
  const std::filesystem::path& path() const { return path_; }

 private:
  File() = default;

  // "file.h5:/path" for messages.
  std::string placeOf(const std::string& path) const { return path_.string() + ":" + path; }

  std::filesystem::path path_;
  std::shared_ptr<detail::Output> output_;  // of a file under construction; outlives the handle
  std::int64_t size_ = 0;                   // in bytes, of a file that is read
  Handle handle_;
};

std::string libraryVersion();

}  // namespace tandem::hdf5
