#include "common/base/hash.h"

#include <xxhash.h>

#include <cstdio>
#include <vector>

#include "common/base/files.h"

namespace tandem::base {
namespace {

std::string hexText(XXH128_hash_t hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() { XXH3_128bits_reset(xxh); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;
void Hasher::update(std::span<const std::byte> bytes) { XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()); }
std::string Hasher::hex() const { return hexText(XXH3_128bits_digest(state_->xxh)); }

std::string hashHex(std::string_view bytes) { return hexText(XXH3_128bits(bytes.data(), bytes.size())); }

std::string hashFile(const std::filesystem::path& path) {
  const File file = File::openForReading(path);
  Hasher hasher;
  std::vector<std::byte> block(std::size_t{1} << 20);
  for (std::int64_t offset = 0;;) {
    const std::int64_t got = file.readAt(offset, block);
    if (got == 0) return hasher.hex();
    hasher.update(std::span(block).first(static_cast<std::size_t>(got)));
    offset += got;
  }
}

}  // namespace tandem::base
