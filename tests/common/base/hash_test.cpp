#include "common/base/hash.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/error.h"
#include "common/base/files.h"
#include "tests/run_program.h"

namespace tandem::base {
namespace {

// Known values of the algorithm, with seed 0.
TEST(Hash, isXxh3With128Bits) {
  EXPECT_EQ(hashHex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hashHex("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, fedPieceByPieceIsTheSame) {
  const std::string text(3000, 'q');
  Hasher hasher;
  for (std::size_t at = 0; at < text.size(); at += 7) {
    hasher.update(std::as_bytes(std::span(text.data() + at, std::min<std::size_t>(7, text.size() - at))));
  }
  EXPECT_EQ(hasher.hex(), hashHex(text));
  EXPECT_EQ(Hasher().hex(), hashHex(""));
}

TEST(Hash, ofAFileIsThatOfItsBytes) {
  const test::TemporaryFolder folder;
  const std::string content(10'000'000, 'x');
  replaceFile(folder.path() / "file", content);
  EXPECT_EQ(hashFile(folder.path() / "file"), hashHex(content));
  EXPECT_THROW(hashFile(folder.path() / "absent"), Error);
}

}  // namespace
}  // namespace tandem::base
