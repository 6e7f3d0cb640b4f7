#include "common/hdf5/detail/types.h"

#include <algorithm>

#include "common/hdf5/detail/library.h"

namespace tandem::hdf5::detail {
namespace {

using base::DType;
constexpr base::ErrorKind internal = base::ErrorKind::device;  // out of memory or identifiers

// IEEE half precision: sign bit 15, exponent of 5 bits from bit 10, mantissa of 10 bits.
Handle makeHalf() {
  Handle type(check(H5Tcopy(H5T_IEEE_F32LE), internal, "cannot make a type"));
  check(H5Tset_fields(raw(type), 15, 10, 5, 0, 10), internal, "cannot make the type float16");
  check(H5Tset_size(raw(type), 2), internal, "cannot make the type float16");
  check(H5Tset_ebias(raw(type), 15), internal, "cannot make the type float16");
  return type;
}

hid_t predefined(DType type) {
  switch (type) {
    case DType::f64:
      return H5T_IEEE_F64LE;
    case DType::f32:
      return H5T_IEEE_F32LE;
    case DType::i64:
      return H5T_STD_I64LE;
    case DType::i32:
      return H5T_STD_I32LE;
    case DType::u64:
      return H5T_STD_U64LE;
    case DType::u32:
      return H5T_STD_U32LE;
    case DType::bf16:
    case DType::u16:
      return H5T_STD_U16LE;
    case DType::u8:
      return H5T_STD_U8LE;
    case DType::i8:
      return H5T_STD_I8LE;
    case DType::f16:
      break;
  }
  return -1;
}

std::optional<DType> parseFloat(hid_t type) {
  Handle copy(check(H5Tcopy(type), internal, "cannot copy a type"));
  if (H5Tset_order(raw(copy), H5T_ORDER_LE) < 0) return std::nullopt;
  for (const DType candidate : {DType::f32, DType::f64, DType::f16}) {
    if (H5Tequal(raw(copy), raw(makeType(candidate))) > 0) return candidate;
  }
  return std::nullopt;
}

std::optional<DType> parseInteger(hid_t type) {
  Handle copy(check(H5Tcopy(type), internal, "cannot copy a type"));
  if (H5Tget_size(type) > 1 && H5Tset_order(raw(copy), H5T_ORDER_LE) < 0) return std::nullopt;
  for (const DType candidate : {DType::u8, DType::i8, DType::u16, DType::i32, DType::u32, DType::i64, DType::u64}) {
    if (H5Tequal(raw(copy), predefined(candidate)) > 0) return candidate;
  }
  return std::nullopt;
}

}  // namespace

Handle makeType(DType type) {
  if (type == DType::f16) return makeHalf();
  return Handle(check(H5Tcopy(predefined(type)), internal, "cannot make a type"));
}

std::optional<DType> parseType(const Handle& type) {
  switch (H5Tget_class(raw(type))) {
    case H5T_FLOAT:
      return parseFloat(raw(type));
    case H5T_INTEGER:
      return parseInteger(raw(type));
    default:
      return std::nullopt;
  }
}

Handle makeTextType(std::size_t length) {
  Handle type(check(H5Tcopy(H5T_C_S1), internal, "cannot make a text type"));
  check(H5Tset_size(raw(type), std::max<std::size_t>(1, length)), internal, "cannot make a text type");
  check(H5Tset_strpad(raw(type), H5T_STR_NULLPAD), internal, "cannot make a text type");
  check(H5Tset_cset(raw(type), H5T_CSET_UTF8), internal, "cannot make a text type");
  return type;
}

std::size_t textLength(const Handle& type, const Handle& space, const std::string& place) {
  if (H5Tget_class(raw(type)) != H5T_STRING || H5Sget_simple_extent_npoints(raw(space)) != 1) {
    throw base::Error(base::ErrorKind::badData, place + " is not one text");
  }
  if (H5Tis_variable_str(raw(type)) > 0) {
    throw base::Error(base::ErrorKind::badData,
                      place + " is a text of variable length, which is not read; store it with a fixed length");
  }
  return H5Tget_size(raw(type));
}

std::string readTextAttribute(const Handle& attribute, const std::string& place) {
  const auto kind = base::ErrorKind::badData;
  const Handle type(check(H5Aget_type(raw(attribute)), kind, "cannot read the type of " + place));
  const Handle space(check(H5Aget_space(raw(attribute)), kind, "cannot read the shape of " + place));
  std::string text(textLength(type, space, place), '\0');
  if (text.size() > H5Aget_storage_size(raw(attribute))) throw base::Error(kind, place + " is damaged");
  check(H5Aread(raw(attribute), raw(type), text.data()), kind, "cannot read " + place);
  text.erase(text.find_last_not_of('\0') + 1);
  return text;
}

}  // namespace tandem::hdf5::detail
