#pragma once
// Hashes of content: XXH3 with 128 bits, written as 32 hexadecimal digits.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tandem::base {

std::string hashHex(std::string_view bytes);

// A hash that is fed piece by piece.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void update(std::span<const std::byte> bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Hash of a whole file. Throws Error of kind file when it can't be read.
std::string hashFile(const std::filesystem::path& path);

}  // namespace tandem::base
