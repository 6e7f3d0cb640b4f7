#pragma once
// A file that a run adds to while it lasts. All failures throw Error of kind file, with path and reason.

#include <filesystem>
#include <string_view>

namespace tandem::telemetry {

class AppendedFile {
 public:
  // Creates the file, or adds to what it holds.
  explicit AppendedFile(std::filesystem::path path);
  AppendedFile(AppendedFile&& other) noexcept;
  AppendedFile& operator=(AppendedFile&& other) noexcept;
  ~AppendedFile();

  void append(std::string_view bytes) const;
  void sync() const;  // makes durable what was appended
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace tandem::telemetry
