// .gz and .zst input, told apart by their first bytes as the files are by their names.

#include "common/data/block_reader.h"
#include "tests/fuzz/fuzz.h"

namespace tandem::fuzz {
namespace {

void read(std::string_view bytes, data::Compression compression, bool skipsBadRecords) {
  const MemoryFile memory(bytes);
  const data::TextFile file{memory.path(), data::TextFormat::plain, compression, std::ssize(bytes)};
  const data::TextOptions options{.skipBadRecords = skipsBadRecords};
  accepts([&] {
    data::BlockReader reader(std::span(&file, 1), {{0, 0, file.bytes}}, options);
    std::int64_t expected = 0;
    for (int blocks = 0; blocks < 20; ++blocks) {  // a few bytes can stand for very many
      const auto block = reader.next();
      if (!block) break;
      demand(block->begin == expected, "blocks follow one another");
      expected += std::ssize(block->bytes);
    }
  });
}

}  // namespace

void fuzzOne(std::string_view bytes) {
  const auto compression = bytes.starts_with("\x1f\x8b") ? data::Compression::gzip : data::Compression::zstd;
  read(bytes, compression, false);
  read(bytes, compression, true);
}

}  // namespace tandem::fuzz
