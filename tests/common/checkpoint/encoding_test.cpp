// The blocks of GGUF against what GGUF's own Python package makes of them (make_blocks.py).

#include "common/checkpoint/encoding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "common/base/error.h"
#include "common/hdf5/hdf5.h"

namespace tandem::checkpoint {
namespace {

constexpr Encoding all[] = {Encoding::q4_0, Encoding::q4_1, Encoding::q5_0, Encoding::q5_1,
                            Encoding::q8_0, Encoding::q4_k, Encoding::q5_k, Encoding::q6_k};

hdf5::File blocks() {
  const char* const folder = std::getenv("TANDEM_SOURCE_DIR");
  return hdf5::File::open(std::string(folder == nullptr ? "." : folder) + "/tests/common/checkpoint/blocks.h5");
}

template <class Value>
std::vector<Value> read(const hdf5::File& file, const std::string& path) {
  const hdf5::Dataset dataset = file.dataset(path);
  std::vector<Value> values(static_cast<std::size_t>(dataset.count()));
  dataset.read(0, dataset.count(), values.data());
  return values;
}

TEST(Encoding, blocksAreReadToTheLastBitAsTheirMakersReadThem) {
  const hdf5::File file = blocks();
  for (const Encoding encoding : all) {
    const std::string name = checkpoint::name(encoding);
    const auto bytes = read<std::uint8_t>(file, name + "/blocks");
    const auto expected = read<float>(file, name + "/values");
    std::vector<float> got(expected.size());
    decode(encoding, std::as_bytes(std::span(bytes)), got);
    EXPECT_EQ(got, expected) << name;
  }
}

TEST(Encoding, blocksAreWrittenAsTheirMakersWriteThem) {
  const hdf5::File file = blocks();
  const auto values = read<float>(file, "written/values");
  for (const Encoding encoding : {Encoding::q8_0, Encoding::q4_0}) {
    const std::string name = checkpoint::name(encoding);
    const auto expected = read<std::uint8_t>(file, "written/" + name);
    std::vector<std::uint8_t> got(expected.size());
    encode(encoding, values, std::as_writable_bytes(std::span(got)), "values");
    EXPECT_EQ(got, expected) << name;
  }
}

TEST(Encoding, whatBlocksCannotHoldIsRefusedByName) {
  std::vector<float> values(32, 1.0f);
  values[7] = NAN;
  std::vector<std::byte> target(34);
  try {
    encode(Encoding::q8_0, values, target, "layers.0.weight");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::badData);
    EXPECT_NE(error.message().find("layers.0.weight"), std::string::npos);
  }
}

TEST(Encoding, namesAreReadInAnyCaseAndUnknownOnesRefusedWithTheKnown) {
  EXPECT_EQ(parseEncoding("q4_k"), Encoding::q4_k);
  EXPECT_EQ(parseEncoding("BF16"), Encoding::bf16);
  try {
    parseEncoding("q3");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    EXPECT_NE(error.message().find("Q4_0"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::checkpoint
