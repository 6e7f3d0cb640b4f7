#pragma once
// Element types as HDF5 knows them. All are little-endian, in files and in memory.

#include <cstddef>
#include <optional>
#include <string>

#include "common/base/dtype.h"
#include "common/hdf5/hdf5.h"

namespace tandem::hdf5::detail {

// bfloat16 becomes uint16: HDF5 1.10 has no name for it; an attribute of the dataset says so.
Handle makeType(base::DType type);

// The inverse for any byte order; empty for a type that has no counterpart here. Never bfloat16.
std::optional<base::DType> parseType(const Handle& type);

// Texts have a fixed length, UTF-8, padded with zeros. (Those of variable length lie in a heap without checksums, and
// HDF5 1.10 loops for ever in a damaged one. So they are neither written nor read.)
Handle makeTextType(std::size_t length);

// The length of a text; kind badData when type and space are not those of one text of fixed length.
std::size_t textLength(const Handle& type, const Handle& space, const std::string& place);

// The value of an attribute that is one text. `place` names it in errors of kind badData.
std::string readTextAttribute(const Handle& attribute, const std::string& place);

}  // namespace tandem::hdf5::detail
