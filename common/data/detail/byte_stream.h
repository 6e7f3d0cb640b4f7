#pragma once
// The bytes of a file, or of a part of it, one after another, decompressed on the way in bounded memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "common/data/text_source.h"

namespace tandem::data::detail {

// The compressed data are no such data, or break off. What came before has been handed out.
class BrokenStream : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills bytes, as far as there are any; 0 at the end. Throws BrokenStream, or Error of kind file.
  virtual std::int64_t read(std::span<char> bytes) = 0;
};

// From byte `begin` on; a compressed file only from 0.
std::unique_ptr<ByteStream> openStream(const TextFile& file, std::int64_t begin);

}  // namespace tandem::data::detail
