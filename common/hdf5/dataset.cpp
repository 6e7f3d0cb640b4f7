#include <algorithm>

#include "common/hdf5/detail/boxes.h"
#include "common/hdf5/detail/library.h"
#include "common/hdf5/detail/output.h"
#include "common/hdf5/detail/types.h"
#include "common/hdf5/hdf5.h"

namespace tandem::hdf5 {
namespace {

using base::Error;
using base::ErrorKind;
using detail::check;
using detail::Lock;
using detail::raw;

Handle spaceOf(const Handle& dataset, const std::string& place) {
  return Handle(check(H5Dget_space(raw(dataset)), ErrorKind::badData, "cannot read the shape of " + place));
}

void checkRange(const base::Shape& shape, std::int64_t begin, std::int64_t count, const std::string& place) {
  if (begin >= 0 && count >= 0 && begin <= shape.count() && count <= shape.count() - begin) return;
  throw Error(ErrorKind::badData, "elements " + std::to_string(begin) + " to " + std::to_string(begin + count) +
                                      " are outside of " + place + ", whose shape is " + shape.text());
}

// Calls transfer(memory space, file space, first element) for each box of a range of the flattened dataset.
template <class Transfer>
void forEachBox(const Handle& dataset, const base::Shape& shape, std::int64_t begin, std::int64_t count,
                const std::string& place, const Transfer& transfer) {
  const Handle fileSpace = spaceOf(dataset, place);
  if (shape.rank() == 0) {
    if (count == 1) transfer(raw(fileSpace), raw(fileSpace), 0);
    return;
  }
  std::int64_t done = 0;
  for (const detail::Box& box : detail::boxesOfRange(shape, begin, count)) {
    check(H5Sselect_hyperslab(raw(fileSpace), H5S_SELECT_SET, box.start.data(), nullptr, box.extent.data(), nullptr),
          ErrorKind::device, "cannot select a part of " + place);
    const auto boxCount = static_cast<hsize_t>(box.count);
    const Handle memorySpace(check(H5Screate_simple(1, &boxCount, nullptr), ErrorKind::device, "cannot make a space"));
    transfer(raw(memorySpace), raw(fileSpace), done);
    done += box.count;
  }
}

}  // namespace

base::DType Dataset::type() const {
  const Lock lock;
  const Handle type(check(H5Dget_type(raw(handle_)), ErrorKind::badData, "cannot read the type of " + place_));
  const std::optional<base::DType> parsed = detail::parseType(type);
  if (!parsed) throw Error(ErrorKind::badData, place_ + " holds elements of a type that is no number known here");
  if (*parsed != base::DType::u16 || H5Aexists(raw(handle_), "dtype") <= 0) return *parsed;
  const Handle attribute(
      check(H5Aopen(raw(handle_), "dtype", H5P_DEFAULT), ErrorKind::badData, "cannot read the dtype of " + place_));
  const std::string name = detail::readTextAttribute(attribute, place_ + " attribute dtype");
  if (name == base::name(base::DType::bf16)) return base::DType::bf16;
  if (name == base::name(base::DType::u16)) return base::DType::u16;
  throw Error(ErrorKind::badData, place_ + " is stored as uint16, but its attribute dtype says '" + name + "'");
}

base::Shape Dataset::shape() const {
  const Lock lock;
  const Handle space = spaceOf(handle_, place_);
  const int rank = H5Sget_simple_extent_ndims(raw(space));
  if (rank < 0 || rank > base::Shape::maxRank || H5Sget_simple_extent_type(raw(space)) == H5S_NULL) {
    throw Error(ErrorKind::badData, place_ + " has " + std::to_string(rank) +
                                        " dimensions or no elements at all; 0 to " +
                                        std::to_string(base::Shape::maxRank) + " can be read");
  }
  hsize_t extents[base::Shape::maxRank] = {};
  check(H5Sget_simple_extent_dims(raw(space), extents, nullptr), ErrorKind::badData,
        "cannot read the shape of " + place_);
  base::Shape result;
  hsize_t count = 1;
  for (int axis = 0; axis < rank; ++axis) {
    constexpr hsize_t limit = hsize_t{1} << 56;
    if (extents[axis] > limit || (count != 0 && extents[axis] > limit / count)) {
      throw Error(ErrorKind::badData, place_ + " claims to have more elements than any file can hold");
    }
    count *= extents[axis];
    result.append(static_cast<std::int64_t>(extents[axis]));
  }
  return result;
}

bool Dataset::isVirtual() const {
  const Lock lock;
  const Handle list(
      check(H5Dget_create_plist(raw(handle_)), ErrorKind::badData, "cannot read the layout of " + place_));
  return H5Pget_layout(raw(list)) == H5D_VIRTUAL;
}

std::int64_t Dataset::offset() const {
  const Lock lock;
  const haddr_t offset = H5Dget_offset(raw(handle_));
  if (offset == HADDR_UNDEF) detail::fail(ErrorKind::badData, place_ + " has no place in its file yet");
  return static_cast<std::int64_t>(offset);
}

void Dataset::read(std::int64_t begin, std::int64_t count, void* target) const {
  const Lock lock;
  const base::Shape whole = shape();
  checkRange(whole, begin, count, place_);
  const base::DType elementType = type();
  const Handle memoryType = detail::makeType(elementType);
  forEachBox(handle_, whole, begin, count, place_, [&](hid_t memorySpace, hid_t fileSpace, std::int64_t first) {
    char* part = static_cast<char*>(target) + first * base::byteSize(elementType);
    check(H5Dread(raw(handle_), raw(memoryType), memorySpace, fileSpace, H5P_DEFAULT, part), ErrorKind::badData,
          "cannot read " + place_);
  });
}

void Dataset::write(std::int64_t begin, std::int64_t count, const void* source) {
  const Lock lock;
  const base::Shape whole = shape();
  checkRange(whole, begin, count, place_);
  const base::DType elementType = type();
  const Handle memoryType = detail::makeType(elementType);
  forEachBox(handle_, whole, begin, count, place_, [&](hid_t memorySpace, hid_t fileSpace, std::int64_t first) {
    const char* part = static_cast<const char*>(source) + first * base::byteSize(elementType);
    check(H5Dwrite(raw(handle_), raw(memoryType), memorySpace, fileSpace, H5P_DEFAULT, part), ErrorKind::file,
          "cannot write " + place_);
  });
  if (output_) output_->throwFailure();
}

void Dataset::append(std::int64_t count, const void* source) {
  const Lock lock;
  const base::Shape before = shape();
  TANDEM_ASSERT(before.rank() == 1, "only a dataset of one dimension grows");
  const auto after = static_cast<hsize_t>(before[0] + count);
  check(H5Dset_extent(raw(handle_), &after), ErrorKind::file, "cannot lengthen " + place_);
  write(before[0], count, source);
}

}  // namespace tandem::hdf5
