#include "common/checkpoint/detail/foreign_model.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "common/base/error.h"

namespace tandem::checkpoint::detail {
namespace {

using base::DType;
using base::Error;
using base::ErrorKind;

constexpr std::int64_t blockOfElements = 1 << 20;

// Elements that are not stored as wanted, through memory of a block.
void readConverted(const TensorFile& file, const StoredTensor& tensor, std::int64_t begin, std::int64_t count,
                   DType type, std::byte* target) {
  const Encoding encoding = *tensor.encoding;
  const std::int64_t unit = blockElements(encoding);
  std::vector<std::byte> stored;
  std::vector<float> floats;
  while (count > 0) {
    const std::int64_t first = begin / unit * unit;
    const std::int64_t length = std::min(count, blockOfElements - (begin - first));
    const std::int64_t whole = (begin - first + length + unit - 1) / unit * unit;
    stored.resize(static_cast<std::size_t>(encodedBytes(encoding, whole)));
    floats.resize(static_cast<std::size_t>(whole));
    file.read(tensor.offset + encodedBytes(encoding, first), stored);
    decode(encoding, stored, floats);
    convert(DType::f32, floats.data() + (begin - first), type, target, length);
    target += length * base::byteSize(type);
    begin += length;
    count -= length;
  }
}

// Of all parts of a parameter, if one type of floats has them; else float32.
template <class Parts>
DType commonType(const Parts& parts) {
  const auto first = plainType(*parts.front().tensor->encoding);
  const bool alike = std::ranges::all_of(
      parts, [&](const auto& part) { return part.tensor->encoding == parts.front().tensor->encoding; });
  return first && alike ? *first : DType::f32;
}

}  // namespace

void readElements(const TensorFile& file, const StoredTensor& tensor, std::int64_t begin, std::int64_t count,
                  DType type, std::byte* target) {
  if (plainType(*tensor.encoding) != type) return readConverted(file, tensor, begin, count, type, target);
  const std::int64_t size = base::byteSize(type);
  file.read(tensor.offset + begin * size, {target, static_cast<std::size_t>(count * size)});
}

void transpose(const std::byte* source, std::int64_t rows, std::int64_t columns, std::int64_t stride,
               std::int64_t elementBytes, std::byte* target) {
  constexpr std::int64_t tile = 32;  // rows and columns, so that both sides stay in the cache
  const auto size = static_cast<std::size_t>(elementBytes);
  for (std::int64_t row = 0; row < rows; row += tile) {
    for (std::int64_t column = 0; column < columns; column += tile) {
      for (std::int64_t r = row; r < std::min(rows, row + tile); ++r) {
        for (std::int64_t c = column; c < std::min(columns, column + tile); ++c) {
          std::memcpy(target + (c * rows + r) * elementBytes, source + (r * stride + c) * elementBytes, size);
        }
      }
    }
  }
}

model::Configuration parseForeignConfiguration(const std::string& json, const std::string& origin) {
  try {
    return model::parseConfiguration(json, origin);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    throw Error(ErrorKind::badData, error.message());
  }
}

ForeignModel::ForeignModel(ForeignParts parts) : parts_(std::move(parts)) {
  place_ = parts_.place;
  metadata_ = std::move(parts_.metadata);
  configuration_ = parts_.configuration;
  for (const Parameter& parameter : parts_.layout) {
    std::vector<LocatedPart> located;
    for (const Part& part : parameter.parts) located.push_back(locate(part));
    parameters_.push_back({parameter.name, commonType(located), parameter.shape});
    located_.push_back(std::move(located));
  }
  refuseUnknown();
}

ForeignModel::LocatedPart ForeignModel::locate(const Part& part) const {
  std::string name = part.name;
  const bool hasPrefix = !parts_.optionalPrefix.empty() && name.starts_with(parts_.optionalPrefix);
  const std::string shortName = hasPrefix ? name.substr(parts_.optionalPrefix.size()) : name;
  for (const auto& file : parts_.files) {
    const StoredTensor* tensor = file->find(name);
    if (tensor == nullptr) tensor = file->find(shortName);
    if (tensor == nullptr) continue;
    if (!tensor->encoding) {
      throw Error(ErrorKind::badData, file->path().string() + ": the tensor '" + tensor->name + "' is of type " +
                                          tensor->type + ", which no weight of ours has");
    }
    if (!(tensor->shape == part.shape)) {
      throw Error(ErrorKind::badData, file->path().string() + ": the tensor '" + tensor->name + "' is " +
                                          tensor->shape.text() + "; by the model's configuration it must be " +
                                          part.shape.text());
    }
    return {&part, file.get(), tensor};
  }
  throw Error(ErrorKind::badData, place_.string() + " has no tensor '" + name + "', which a " + configuration_.type +
                                      " model of this configuration needs");
}

void ForeignModel::refuseUnknown() const {
  std::set<std::string> used;
  for (const auto& located : located_) {
    for (const LocatedPart& part : located) {
      if (!used.insert(part.tensor->name).second) {
        throw Error(ErrorKind::badData, place_.string() + ": the tensor '" + part.tensor->name + "' is there twice");
      }
    }
  }
  for (const auto& file : parts_.files) {
    for (const StoredTensor& tensor : file->tensors()) {
      if (used.contains(tensor.name) || isRedundant(configuration_, tensor.name)) continue;
      throw Error(ErrorKind::badData, file->path().string() + ": the tensor '" + tensor.name + "' " +
                                          tensor.shape.text() + " is unknown for a " + configuration_.type +
                                          " model of this configuration");
    }
  }
}

void ForeignModel::readStored(std::size_t parameter, std::int64_t begin, std::int64_t count, void* target) const {
  const DType type = parameters_[parameter].type;
  const std::int64_t rowElements = parts_.layout[parameter].rowElements();
  auto* bytes = static_cast<std::byte*>(target);
  for (const LocatedPart& located : located_[parameter]) {
    const std::int64_t partBegin = located.part->firstRow * rowElements;
    const std::int64_t from = std::max(begin, partBegin);
    const std::int64_t to = std::min(begin + count, partBegin + located.part->rows * rowElements);
    if (from >= to) continue;
    readPart(located, type, rowElements, from - partBegin, to - from, bytes + (from - begin) * base::byteSize(type));
  }
}

void ForeignModel::readPart(const LocatedPart& located, DType type, std::int64_t rowElements, std::int64_t begin,
                            std::int64_t count, std::byte* target) const {
  switch (located.part->arrangement) {
    case Arrangement::same:
      return readElements(*located.file, *located.tensor, begin, count, type, target);
    case Arrangement::interleaved:
      return readInterleaved(located, type, rowElements, begin, count, target);
    case Arrangement::transposed: {
      const std::int64_t size = base::byteSize(type);
      std::memcpy(target, transposed(located, type) + begin * size, static_cast<std::size_t>(count * size));
    }
  }
}

// Head by head, since the rows of a head change places among themselves.
void ForeignModel::readInterleaved(const LocatedPart& located, DType type, std::int64_t rowElements, std::int64_t begin,
                                   std::int64_t count, std::byte* target) const {
  const std::int64_t headSize = located.part->headSize, headElements = headSize * rowElements;
  const std::int64_t size = base::byteSize(type);
  std::vector<std::byte> head(static_cast<std::size_t>(headElements * size));
  const std::int64_t end = begin + count;
  for (std::int64_t headBegin = begin / headElements * headElements; headBegin < end; headBegin += headElements) {
    readElements(*located.file, *located.tensor, headBegin, headElements, type, head.data());
    for (std::int64_t row = 0; row < headSize; ++row) {
      const std::int64_t rowBegin = headBegin + row * rowElements;
      const std::int64_t from = std::max(begin, rowBegin), to = std::min(end, rowBegin + rowElements);
      if (from >= to) continue;
      const std::int64_t source = theirRow(*located.part, row) * rowElements + (from - rowBegin);
      std::memcpy(target + (from - begin) * size, head.data() + source * size,
                  static_cast<std::size_t>((to - from) * size));
    }
  }
}

const std::byte* ForeignModel::transposed(const LocatedPart& located, DType type) const {
  if (transposed_.first == located.tensor) return transposed_.second.data();
  const base::Shape& shape = located.tensor->shape;
  const std::int64_t size = base::byteSize(type);
  std::vector<std::byte> theirs(static_cast<std::size_t>(shape.count() * size));
  readElements(*located.file, *located.tensor, 0, shape.count(), type, theirs.data());
  transposed_.first = nullptr;
  transposed_.second.resize(theirs.size());
  transpose(theirs.data(), shape[0], shape[1], shape[1], size, transposed_.second.data());
  transposed_.first = located.tensor;
  return transposed_.second.data();
}

}  // namespace tandem::checkpoint::detail
