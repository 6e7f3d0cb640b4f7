#include "common/hdf5/detail/boxes.h"

#include <algorithm>

namespace tandem::hdf5::detail {
namespace {

class Cutter {
 public:
  explicit Cutter(const base::Shape& shape) : shape_(shape) {}

  // Cuts a range of the subtensor that `prefix` fixes the leading axes of; `rowSize` elements make a row of this axis.
  void cut(int axis, Box prefix, std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    std::int64_t rowSize = 1;
    for (int later = axis + 1; later < shape_.rank(); ++later) rowSize *= shape_[later];
    const std::int64_t row = begin / rowSize;
    const std::int64_t offset = begin % rowSize;
    if (offset != 0 || count < rowSize) {
      const std::int64_t part = std::min(count, rowSize - offset);
      cut(axis + 1, withRows(prefix, axis, row, 1), offset, part);
      cut(axis, prefix, begin + part, count - part);
      return;
    }
    const std::int64_t rows = count / rowSize;
    Box box = withRows(prefix, axis, row, rows);
    for (int later = axis + 1; later < shape_.rank(); ++later) box = withRows(box, later, 0, shape_[later]);
    box.count = rows * rowSize;
    boxes.push_back(box);
    cut(axis, prefix, begin + box.count, count - box.count);
  }

  std::vector<Box> boxes;

 private:
  static Box withRows(Box box, int axis, std::int64_t start, std::int64_t extent) {
    box.start[static_cast<std::size_t>(axis)] = static_cast<hsize_t>(start);
    box.extent[static_cast<std::size_t>(axis)] = static_cast<hsize_t>(extent);
    return box;
  }

  const base::Shape& shape_;
};

}  // namespace

std::vector<Box> boxesOfRange(const base::Shape& shape, std::int64_t begin, std::int64_t count) {
  Cutter cutter(shape);
  if (shape.rank() > 0) cutter.cut(0, Box{}, begin, count);
  return cutter.boxes;
}

}  // namespace tandem::hdf5::detail
