#include "common/checkpoint/tensor_file.h"

#include <algorithm>

#include "common/base/error.h"

namespace tandem::checkpoint {

using base::Error;
using base::ErrorKind;

TensorFile::TensorFile(const std::filesystem::path& path)
    : path_(path), file_(base::File::openForReading(path)), size_(file_.size()) {}

void TensorFile::fail(const std::string& what) const { throw Error(ErrorKind::badData, path_.string() + ": " + what); }

const StoredTensor* TensorFile::find(const std::string& name) const {
  const auto found = byName_.find(name);
  return found == byName_.end() ? nullptr : &tensors_[found->second];
}

void TensorFile::read(std::int64_t offset, std::span<std::byte> bytes) const {
  const std::int64_t got = file_.readAt(offset, bytes);
  if (got < std::ssize(bytes)) {
    fail("ends at byte " + std::to_string(offset + got) + ", " + std::to_string(std::ssize(bytes) - got) +
         " bytes too early: it is truncated");
  }
}

void TensorFile::place(std::vector<StoredTensor> tensors) {
  tensors_ = std::move(tensors);
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const StoredTensor& tensor = tensors_[i];
    if (!byName_.emplace(tensor.name, i).second) fail("holds two tensors named '" + tensor.name + "'");
    if (tensor.offset < 0 || tensor.bytes < 0 || tensor.offset > size_ || tensor.bytes > size_ - tensor.offset) {
      fail("the tensor '" + tensor.name + "' of " + std::to_string(tensor.bytes) + " bytes at byte " +
           std::to_string(tensor.offset) + " leaves the file, which has " + std::to_string(size_) +
           " bytes: it is truncated or damaged");
    }
    if (i > 0 && tensors_[i - 1].offset + tensors_[i - 1].bytes > tensor.offset) {
      fail("the tensor '" + tensor.name + "' at byte " + std::to_string(tensor.offset) + " overlaps '" +
           tensors_[i - 1].name + "', which ends at byte " +
           std::to_string(tensors_[i - 1].offset + tensors_[i - 1].bytes));
    }
  }
}

std::optional<base::Shape> checkedShape(std::span<const std::int64_t> extents) {
  constexpr std::int64_t limit = std::int64_t{1} << 59;
  if (extents.size() > static_cast<std::size_t>(base::Shape::maxRank)) return std::nullopt;
  base::Shape shape;
  std::int64_t product = 1;  // of the extents that are not zero
  for (const std::int64_t extent : extents) {
    if (extent < 0 || extent > limit || (extent > 0 && product > limit / extent)) return std::nullopt;
    if (extent > 0) product *= extent;
    shape.append(extent);
  }
  return shape;
}

}  // namespace tandem::checkpoint
