#pragma once
// Compressed bytes for tests of what reads them.

#include <zlib.h>
#include <zstd.h>

#include <string>
#include <string_view>

namespace tandem::data {

inline std::string gzip(std::string_view text) {
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string result(text.size() + 1024, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(result.data());
  state.avail_out = static_cast<uInt>(result.size());
  deflate(&state, Z_FINISH);
  result.resize(state.total_out);
  deflateEnd(&state);
  return result;
}

inline std::string zstd(std::string_view text) {
  std::string result(ZSTD_compressBound(text.size()), '\0');
  result.resize(ZSTD_compress(result.data(), result.size(), text.data(), text.size(), 3));
  return result;
}

}  // namespace tandem::data
