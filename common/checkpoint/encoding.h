#pragma once
// How the elements of a tensor lie in somebody else's file: plain floats, or the blocks of GGUF.
//
// A block stands for 32 (q8_0, q4_0, ...) or 256 elements (q4_k, ...) of a row by small integers and a scale. The
// layouts are those of GGUF's reference implementation, bit for bit, and encoding chooses the same numbers.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/dtype.h"

namespace tandem::checkpoint {

enum class Encoding : std::uint8_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

const char* name(Encoding encoding);  // "F32", "Q4_K": as GGUF and safetensors have it
// Any case; throws Error of kind usage that names those there are.
Encoding parseEncoding(const std::string& text);

std::int64_t blockElements(Encoding encoding);  // 1 for plain floats
std::int64_t blockBytes(Encoding encoding);
// Of so many elements, which must be whole blocks.
std::int64_t encodedBytes(Encoding encoding, std::int64_t elements);

// The type of plain floats; nothing for blocks. And the inverse; nothing for types that no weight has.
std::optional<base::DType> plainType(Encoding encoding);
std::optional<Encoding> encodingOf(base::DType type);

// Whole blocks to floats.
void decode(Encoding encoding, std::span<const std::byte> source, std::span<float> target);

// Floats to whole blocks. Only plain floats, q8_0 and q4_0 are written. Throws Error of kind badData that names
// `tensor` where blocks cannot hold a value, being no finite number.
bool canEncode(Encoding encoding);
void encode(Encoding encoding, std::span<const float> source, std::span<std::byte> target, const std::string& tensor);

// Between float32, float16 and bfloat16: widening is exact, narrowing rounds to nearest, ties to even.
void convert(base::DType from, const void* source, base::DType to, void* target, std::int64_t count);

}  // namespace tandem::checkpoint
