#pragma once
// Files: POSIX calls wrapped so that every failure is an Error with the path and the system's reason,
// and the pieces of durable writing: fsync of files and folders, and replacement that is whole or not at all.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tandem::base {

// An open file descriptor, closed by the destructor. All failures throw Error of kind file.
class File {
 public:
  static File openForReading(const std::filesystem::path& path);
  // Creates the file, or empties it.
  static File create(const std::filesystem::path& path);
  // A file that is there, with what it holds.
  static File openForWriting(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  // Reads up to bytes.size() bytes at an offset; returns how many, fewer only at the end of the file.
  std::int64_t readAt(std::int64_t offset, std::span<std::byte> bytes) const;
  // Writes all bytes at an offset.
  void writeAt(std::int64_t offset, std::span<const std::byte> bytes) const;
  std::int64_t size() const;
  // Gives the file so many bytes; those that nobody has written are zeros and take no room.
  void resize(std::int64_t bytes) const;
  // Asks the system to begin writing these bytes to the disk, so that sync() has less to wait for. A hint only.
  void startWriting(std::int64_t offset, std::int64_t bytes) const;
  void sync() const;
  // Closes and reports what the system says then; the destructor can't.
  void close();
  int descriptor() const { return descriptor_; }

 private:
  File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::filesystem::path path_;
};

// The whole content of a file.
std::string readFile(const std::filesystem::path& path);

// Writes a file so that a reader, or a crash at any moment, sees the old content or the new, never a part:
// a temporary neighbour is written, synced and renamed, and the folder is synced.
void replaceFile(const std::filesystem::path& path, std::string_view content);

void syncFolder(const std::filesystem::path& folder);
void createFolders(const std::filesystem::path& folder);

}  // namespace tandem::base
