#pragma once
// Element types as HDF5 knows them. All are little-endian, in files and in memory.

#include <optional>
#include <string>

#include "common/base/dtype.h"
#include "common/hdf5/hdf5.h"

namespace tandem::hdf5::detail {

// bfloat16 becomes uint16: HDF5 1.10 has no name for it; an attribute of the dataset says so.
Handle makeType(base::DType type);

// The inverse for any byte order; empty for a type that has no counterpart here. Never bfloat16.
std::optional<base::DType> parseType(const Handle& type);

Handle makeTextType();  // of variable length, UTF-8

// The value of an attribute that is one text, of fixed or variable length. `place` names it in errors of kind badData.
std::string readTextAttribute(const Handle& attribute, const std::string& place);

}  // namespace tandem::hdf5::detail
