#include "common/base/dtype.h"

#include <array>

#include "common/base/error.h"

namespace tandem::base {

const char* name(DType type) {
  switch (type) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::i64: return "int64";
    case DType::i32: return "int32";
    case DType::u64: return "uint64";
    case DType::u32: return "uint32";
    case DType::u16: return "uint16";
    case DType::u8: return "uint8";
    case DType::i8: return "int8";
  }
  return "unknown";
}

DType parseDType(const std::string& text) {
  constexpr std::array all = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                              DType::u64, DType::u32, DType::u16,  DType::u8,  DType::i8};
  for (const DType type : all) {
    if (text == name(type)) return type;
  }
  throw Error(ErrorKind::badData, "'" + text + "' is no element type we know");
}

}  // namespace tandem::base
