#include "common/checkpoint/encoding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/base/error.h"

namespace tandem::checkpoint {
namespace {

using base::BFloat16;
using base::DType;
using base::Error;
using base::ErrorKind;
using base::Float16;

struct Entry {
  const char* name;
  std::int64_t elements;
  std::int64_t bytes;
};

constexpr std::array<Entry, 11> entries = {{{"F32", 1, 4},
                                            {"F16", 1, 2},
                                            {"BF16", 1, 2},
                                            {"Q4_0", 32, 18},
                                            {"Q4_1", 32, 20},
                                            {"Q5_0", 32, 22},
                                            {"Q5_1", 32, 24},
                                            {"Q8_0", 32, 34},
                                            {"Q4_K", 256, 144},
                                            {"Q5_K", 256, 176},
                                            {"Q6_K", 256, 210}}};

const Entry& entry(Encoding encoding) { return entries[static_cast<std::size_t>(encoding)]; }

using Bytes = const std::uint8_t*;

float half(Bytes bytes) {
  Float16 value;
  std::memcpy(&value.bits, bytes, sizeof value.bits);
  return static_cast<float>(value);
}

// The blocks of 32: a scale, a minimum (kinds _1), the fifth bits (kinds 5_), then nibbles: element i is the lower half
// of byte i, element i + 16 the upper. Without a minimum the integers are centred on zero.
template <bool fiveBits, bool withMinimum>
void decodeNibbles(Bytes block, float* target) {
  const float scale = half(block);
  const float minimum = withMinimum ? half(block + 2) : 0.0f;
  block += withMinimum ? 4 : 2;
  std::uint32_t fifth = 0;
  if (fiveBits) {
    std::memcpy(&fifth, block, sizeof fifth);
    block += sizeof fifth;
  }
  constexpr int centre = withMinimum ? 0 : (fiveBits ? 16 : 8);
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned low = (block[i] & 0xfu) | (((fifth >> i) & 1u) << 4);
    const unsigned high = (block[i] >> 4u) | (((fifth >> (i + 16)) & 1u) << 4);
    target[i] = static_cast<float>(static_cast<int>(low) - centre) * scale + minimum;
    target[i + 16] = static_cast<float>(static_cast<int>(high) - centre) * scale + minimum;
  }
}

void decodeQ8(Bytes block, float* target) {
  const float scale = half(block);
  for (int i = 0; i < 32; ++i) target[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * scale;
}

// Scale and minimum of a group of 32 of Q4_K and Q5_K: eight of each, 6 bits wide, in 12 bytes.
struct GroupScale {
  float scale;
  float minimum;
};
GroupScale groupScale(Bytes packed, int group, float scale, float minimum) {
  unsigned s = 0, m = 0;
  if (group < 4) {
    s = packed[group] & 63u;
    m = packed[group + 4] & 63u;
  } else {
    s = (packed[group + 4] & 0xfu) | ((packed[group - 4] >> 6u) << 4u);
    m = (packed[group + 4] >> 4u) | ((packed[group] >> 6u) << 4u);
  }
  return {scale * static_cast<float>(s), minimum * static_cast<float>(m)};
}

// Q4_K and Q5_K: scale, minimum, 12 bytes of groups' scales, the fifth bits (Q5_K), nibbles of two groups at a time.
template <bool fiveBits>
void decodeGroups(Bytes block, float* target) {
  const float scale = half(block), minimum = half(block + 2);
  const Bytes packed = block + 4, fifth = block + 16;
  Bytes nibbles = block + (fiveBits ? 48 : 16);
  for (int group = 0; group < 8; ++group) {
    const GroupScale g = groupScale(packed, group, scale, minimum);
    for (int i = 0; i < 32; ++i) {
      unsigned value = group % 2 == 0 ? nibbles[i] & 0xfu : nibbles[i] >> 4u;
      if (fiveBits) value |= ((fifth[i] >> static_cast<unsigned>(group)) & 1u) << 4u;
      target[i] = g.scale * static_cast<float>(value) - g.minimum;
    }
    target += 32;
    if (group % 2 == 1) nibbles += 32;
  }
}

// Q6_K: lower nibbles, upper two bits, 16 scales of groups of 16, scale.
void decodeQ6(Bytes block, float* target) {
  Bytes low = block, high = block + 128;
  const Bytes scales = block + 192;
  const float scale = half(block + 208);
  for (int part = 0; part < 2; ++part) {
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const unsigned byte = low[i + 32 * (quarter % 2)];
        const unsigned nibble = quarter < 2 ? byte & 0xfu : byte >> 4u;
        const unsigned value = nibble | (((high[i] >> static_cast<unsigned>(2 * quarter)) & 3u) << 4u);
        const auto group = static_cast<std::int8_t>(scales[8 * part + 2 * quarter + i / 16]);
        target[32 * quarter + i] = scale * static_cast<float>(group) * static_cast<float>(static_cast<int>(value) - 32);
      }
    }
    target += 128;
    low += 64;
    high += 32;
  }
}

template <class Decode>
void decodeBlocks(Encoding encoding, std::span<const std::byte> source, std::span<float> target, Decode decodeOne) {
  const auto elements = static_cast<std::size_t>(blockElements(encoding));
  const auto bytes = static_cast<std::size_t>(blockBytes(encoding));
  const auto* block = reinterpret_cast<Bytes>(source.data());
  for (std::size_t done = 0; done < target.size(); done += elements, block += bytes) {
    decodeOne(block, target.data() + done);
  }
}

void putHalf(float value, std::uint8_t* target) {
  const Float16 narrow(value);
  std::memcpy(target, &narrow.bits, sizeof narrow.bits);
}

void encodeQ8(const float* source, std::uint8_t* block) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(source[i]));
  const float scale = largest / 127.0f;
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  putHalf(scale, block);
  for (int i = 0; i < 32; ++i) block[2 + i] = static_cast<std::uint8_t>(std::lround(source[i] * inverse));
}

// The value furthest from zero becomes -8 exactly.
void encodeQ4(const float* source, std::uint8_t* block) {
  float furthest = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::abs(source[i]) > std::abs(furthest)) furthest = source[i];
  }
  const float scale = furthest / -8.0f;
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  putHalf(scale, block);
  const auto code = [&](float value) {
    return static_cast<unsigned>(std::clamp(static_cast<int>(value * inverse + 8.5f), 0, 15));
  };
  for (int i = 0; i < 16; ++i) {
    block[2 + i] = static_cast<std::uint8_t>(code(source[i]) | (code(source[i + 16]) << 4u));
  }
}

// A scale of blocks is a float16: what has none cannot be written as blocks.
void demandFinite(std::span<const float> values, const std::string& tensor, float limit) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) <= limit) continue;
    throw Error(ErrorKind::badData, "the tensor " + tensor + " holds " + std::to_string(values[i]) +
                                        ", which blocks of small integers cannot stand for; write it as F32");
  }
}

template <class Encode>
void encodeBlocks(Encoding encoding, std::span<const float> source, std::span<std::byte> target, Encode encodeOne) {
  const auto elements = static_cast<std::size_t>(blockElements(encoding));
  const auto bytes = static_cast<std::size_t>(blockBytes(encoding));
  auto* block = reinterpret_cast<std::uint8_t*>(target.data());
  for (std::size_t done = 0; done < source.size(); done += elements, block += bytes) {
    encodeOne(source.data() + done, block);
  }
}

template <class From, class To>
void convertAs(const void* source, void* target, std::int64_t count) {
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    const To converted(static_cast<float>(value));
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof converted, &converted, sizeof converted);
  }
}

template <class From>
void convertFrom(const void* source, DType to, void* target, std::int64_t count) {
  if (to == DType::f32) return convertAs<From, float>(source, target, count);
  if (to == DType::bf16) return convertAs<From, BFloat16>(source, target, count);
  convertAs<From, Float16>(source, target, count);
}

}  // namespace

const char* name(Encoding encoding) { return entry(encoding).name; }

Encoding parseEncoding(const std::string& text) {
  std::string upper = text, known;
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (upper == entries[i].name) return static_cast<Encoding>(i);
    known += (known.empty() ? "" : ", ") + std::string(entries[i].name);
  }
  throw Error(ErrorKind::usage, "'" + text + "' is no type of elements; there are " + known);
}

std::int64_t blockElements(Encoding encoding) { return entry(encoding).elements; }
std::int64_t blockBytes(Encoding encoding) { return entry(encoding).bytes; }

std::int64_t encodedBytes(Encoding encoding, std::int64_t elements) {
  TANDEM_ASSERT(elements % blockElements(encoding) == 0, "elements come in whole blocks");
  return elements / blockElements(encoding) * blockBytes(encoding);
}

std::optional<DType> plainType(Encoding encoding) {
  switch (encoding) {
    case Encoding::f32:
      return DType::f32;
    case Encoding::f16:
      return DType::f16;
    case Encoding::bf16:
      return DType::bf16;
    default:
      return std::nullopt;
  }
}

std::optional<Encoding> encodingOf(DType type) {
  switch (type) {
    case DType::f32:
      return Encoding::f32;
    case DType::f16:
      return Encoding::f16;
    case DType::bf16:
      return Encoding::bf16;
    default:
      return std::nullopt;
  }
}

void decode(Encoding encoding, std::span<const std::byte> source, std::span<float> target) {
  const auto count = static_cast<std::int64_t>(target.size());
  TANDEM_ASSERT(std::ssize(source) == encodedBytes(encoding, count), "the bytes are those of the elements");
  switch (encoding) {
    case Encoding::f32:
    case Encoding::f16:
    case Encoding::bf16:
      return convert(*plainType(encoding), source.data(), DType::f32, target.data(), count);
    case Encoding::q4_0:
      return decodeBlocks(encoding, source, target, decodeNibbles<false, false>);
    case Encoding::q4_1:
      return decodeBlocks(encoding, source, target, decodeNibbles<false, true>);
    case Encoding::q5_0:
      return decodeBlocks(encoding, source, target, decodeNibbles<true, false>);
    case Encoding::q5_1:
      return decodeBlocks(encoding, source, target, decodeNibbles<true, true>);
    case Encoding::q8_0:
      return decodeBlocks(encoding, source, target, decodeQ8);
    case Encoding::q4_k:
      return decodeBlocks(encoding, source, target, decodeGroups<false>);
    case Encoding::q5_k:
      return decodeBlocks(encoding, source, target, decodeGroups<true>);
    case Encoding::q6_k:
      return decodeBlocks(encoding, source, target, decodeQ6);
  }
}

bool canEncode(Encoding encoding) {
  return plainType(encoding) || encoding == Encoding::q8_0 || encoding == Encoding::q4_0;
}

void encode(Encoding encoding, std::span<const float> source, std::span<std::byte> target, const std::string& tensor) {
  TANDEM_ASSERT(canEncode(encoding), "a type that is written");
  TANDEM_ASSERT(std::ssize(target) == encodedBytes(encoding, std::ssize(source)), "room for the encoded elements");
  if (const auto type = plainType(encoding)) {
    return convert(DType::f32, source.data(), *type, target.data(), std::ssize(source));
  }
  constexpr float largestHalf = 65504.0f;
  const bool bytes = encoding == Encoding::q8_0;
  demandFinite(source, tensor, largestHalf * (bytes ? 127.0f : 8.0f));
  if (bytes) return encodeBlocks(encoding, source, target, encodeQ8);
  encodeBlocks(encoding, source, target, encodeQ4);
}

void convert(DType from, const void* source, DType to, void* target, std::int64_t count) {
  if (from == to) {
    std::memcpy(target, source, static_cast<std::size_t>(count * base::byteSize(from)));
  } else if (from == DType::f32) {
    convertFrom<float>(source, to, target, count);
  } else if (from == DType::bf16) {
    convertFrom<BFloat16>(source, to, target, count);
  } else {
    convertFrom<Float16>(source, to, target, count);
  }
}

}  // namespace tandem::checkpoint
