#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/files.h"
#include "common/hdf5/detail/boxes.h"
#include "common/hdf5/detail/checks.h"
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

constexpr ErrorKind internal = ErrorKind::device;  // HDF5 refuses what only a lack of memory can make it refuse

Handle makeList(hid_t listClass) {
  return Handle(check(H5Pcreate(listClass), internal, "cannot make a property list"));
}

// For what is created: without times, so that the same content makes the same bytes.
Handle makeCreationList(hid_t listClass) {
  Handle list = makeList(listClass);
  check(H5Pset_obj_track_times(raw(list), false), internal, "cannot set a property");
  return list;
}

Handle makeSpace(const base::Shape& shape) {
  hsize_t extents[base::Shape::maxRank] = {};
  for (int axis = 0; axis < shape.rank(); ++axis) extents[axis] = static_cast<hsize_t>(shape[axis]);
  const hid_t space = shape.rank() == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(shape.rank(), extents, nullptr);
  return Handle(check(space, internal, "cannot make a space of shape " + shape.text()));
}

Handle makeLinkList() {
  Handle list = makeList(H5P_LINK_CREATE);
  check(H5Pset_char_encoding(raw(list), H5T_CSET_UTF8), internal, "cannot set a property");
  return list;
}

void setAttributeOf(const Handle& object, const std::string& name, const Handle& type, const void* value,
                    const std::string& place) {
  if (H5Aexists(raw(object), name.c_str()) > 0) {
    check(H5Adelete(raw(object), name.c_str()), ErrorKind::file,
          "cannot replace the attribute " + name + " of " + place);
  }
  const Handle space(check(H5Screate(H5S_SCALAR), internal, "cannot make a space"));
  const Handle attribute(check(H5Acreate2(raw(object), name.c_str(), raw(type), raw(space), H5P_DEFAULT, H5P_DEFAULT),
                               ErrorKind::file, "cannot make the attribute " + name + " of " + place));
  check(H5Awrite(raw(attribute), raw(type), value), ErrorKind::file,
        "cannot write the attribute " + name + " of " + place);
}

void setTextAttributeOf(const Handle& object, const std::string& name, const std::string& value,
                        const std::string& place) {
  setAttributeOf(object, name, detail::makeTextType(value.size()), value.c_str(), place);
}

// Makes the groups that are missing on the way to a path. HDF5 would make them by itself, but with their times.
void createGroups(const Handle& file, const std::string& path, const std::string& place) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string group = path.substr(0, slash);
    if (H5Lexists(raw(file), group.c_str(), H5P_DEFAULT) > 0) continue;
    const Handle made(check(H5Gcreate2(raw(file), group.c_str(), raw(makeLinkList()),
                                       raw(makeCreationList(H5P_GROUP_CREATE)), H5P_DEFAULT),
                            ErrorKind::file, "cannot make the group " + group + " for " + place));
  }
}

Handle createDataset(const Handle& file, const std::string& path, base::DType type, const Handle& space,
                     const Handle& creation, const Handle& access, const std::string& place) {
  createGroups(file, path, place);
  Handle dataset(check(H5Dcreate2(raw(file), path.c_str(), raw(detail::makeType(type)), raw(space), raw(makeLinkList()),
                                  raw(creation), raw(access)),
                       ErrorKind::file, "cannot make the dataset " + place));
  if (type == base::DType::bf16) setTextAttributeOf(dataset, "dtype", base::name(type), place);
  return dataset;
}

std::vector<detail::Box> boxesOf(const base::Shape& shape, const VirtualPiece& piece) {
  if (piece.repeats == 1) return detail::boxesOfRange(shape, piece.targetBegin, piece.count);
  TANDEM_ASSERT(shape.rank() == 2 && piece.stride == shape[1], "several runs are columns of a matrix");
  return {{.start = {static_cast<hsize_t>(piece.targetBegin / shape[1]),
                     static_cast<hsize_t>(piece.targetBegin % shape[1])},
           .extent = {static_cast<hsize_t>(piece.repeats), static_cast<hsize_t>(piece.count)},
           .count = piece.count * piece.repeats}};
}

void addPiece(const Handle& creation, const Handle& target, const base::Shape& shape, const VirtualPiece& piece,
              const std::string& place) {
  const auto sourceCount = static_cast<hsize_t>(piece.sourceCount);
  const Handle source(check(H5Screate_simple(1, &sourceCount, nullptr), internal, "cannot make a space"));
  std::int64_t done = 0;
  for (const detail::Box& box : boxesOf(shape, piece)) {
    const auto begin = static_cast<hsize_t>(piece.sourceBegin + done);
    const auto count = static_cast<hsize_t>(box.count);
    check(H5Sselect_hyperslab(raw(source), H5S_SELECT_SET, &begin, nullptr, &count, nullptr), internal,
          "cannot select a part of " + piece.file + ":" + piece.path);
    check(H5Sselect_hyperslab(raw(target), H5S_SELECT_SET, box.start.data(), nullptr, box.extent.data(), nullptr),
          internal, "cannot select a part of " + place);
    check(H5Pset_virtual(raw(creation), raw(target), piece.file.c_str(), piece.path.c_str(), raw(source)), internal,
          "cannot map a part of " + place);
    done += box.count;
  }
}

Handle openAttribute(const Handle& object, const std::string& name, const std::string& place) {
  return Handle(check(H5Aopen(raw(object), name.c_str(), H5P_DEFAULT), ErrorKind::badData,
                      "cannot open the attribute " + name + " of " + place));
}

}  // namespace

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(output_, other.output_);
  std::swap(size_, other.size_);
  std::swap(handle_, other.handle_);
  return *this;
}

File File::create(const std::filesystem::path& path, Storage storage) {
  const Lock lock;
  File file;
  file.path_ = path;
  file.output_ = storage == Storage::disk ? std::make_shared<detail::Output>(path) : std::make_shared<detail::Output>();
  const Handle access = file.output_->accessList();
  // The format of HDF5 1.8: many attributes and members stay fast, superblock and headers carry checksums, and every
  // reader of the last fifteen years knows it. Large data start at pages of the disk.
  check(H5Pset_libver_bounds(raw(access), H5F_LIBVER_V18, H5F_LIBVER_LATEST), internal, "cannot set a property");
  check(H5Pset_fclose_degree(raw(access), H5F_CLOSE_STRONG), internal, "cannot set a property");
  check(H5Pset_alignment(raw(access), 1 << 16, 4096), internal, "cannot set a property");
  check(H5Pset_file_locking(raw(access), false, true), internal, "cannot set a property");
  const Handle creation = makeCreationList(H5P_FILE_CREATE);
  file.handle_ = Handle(check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, raw(creation), raw(access)), ErrorKind::file,
                              "cannot create '" + path.string() + "'"));
  file.output_->throwFailure();
  return file;
}

File File::open(const std::filesystem::path& path) {
  const Lock lock;
  File file;
  file.path_ = path;
  file.size_ = base::File::openForReading(path).size();
  const Handle access = makeList(H5P_FILE_ACCESS);
  check(H5Pset_fclose_degree(raw(access), H5F_CLOSE_STRONG), internal, "cannot set a property");
  check(H5Pset_file_locking(raw(access), false, true), internal, "cannot set a property");
  file.handle_ = Handle(check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, raw(access)), ErrorKind::badData,
                              path.string() + " is no HDF5 file, or is truncated or damaged"));
  return file;
}

bool File::has(const std::string& path) const {
  const Lock lock;
  return detail::followLinks(handle_, path) == detail::Link::hard;
}

std::vector<std::string> File::members(const std::string& group) const {
  const Lock lock;
  const Handle object = detail::openObject(handle_, group, placeOf(group));
  if (H5Iget_type(raw(object)) != H5I_GROUP) throw Error(ErrorKind::badData, placeOf(group) + " is no group");
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* target) -> herr_t {
    static_cast<std::vector<std::string>*>(target)->emplace_back(name);
    return 0;
  };
  check(H5Literate(raw(object), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect, &names), ErrorKind::badData,
        "cannot list the members of " + placeOf(group));
  std::sort(names.begin(), names.end());
  return names;
}

Dataset File::create(const std::string& path, base::DType type, const base::Shape& shape) {
  const Lock lock;
  Handle dataset = createDataset(handle_, path, type, makeSpace(shape), makeCreationList(H5P_DATASET_CREATE),
                                 makeList(H5P_DATASET_ACCESS), placeOf(path));
  output_->throwFailure();
  return Dataset(std::move(dataset), placeOf(path), output_);
}

Dataset File::createGrowing(const std::string& path, base::DType type, std::int64_t chunk) {
  const Lock lock;
  const hsize_t none = 0;
  const hsize_t unlimited = H5S_UNLIMITED;
  const auto chunkCount = static_cast<hsize_t>(chunk);
  const Handle space(check(H5Screate_simple(1, &none, &unlimited), internal, "cannot make a space"));
  const Handle creation = makeCreationList(H5P_DATASET_CREATE);
  check(H5Pset_chunk(raw(creation), 1, &chunkCount), internal, "cannot set the chunk size of " + placeOf(path));
  // Room for two chunks, so that small appends fill a chunk in memory and it is written once.
  const Handle access = makeList(H5P_DATASET_ACCESS);
  const auto cacheBytes = static_cast<std::size_t>(2 * chunk * base::byteSize(type));
  check(H5Pset_chunk_cache(raw(access), 7, cacheBytes, 1.0), internal, "cannot set a property");
  Handle dataset = createDataset(handle_, path, type, space, creation, access, placeOf(path));
  output_->throwFailure();
  return Dataset(std::move(dataset), placeOf(path), output_);
}

Dataset File::createVirtual(const std::string& path, base::DType type, const base::Shape& shape,
                            std::span<const VirtualPiece> pieces) {
  const Lock lock;
  const Handle creation = makeCreationList(H5P_DATASET_CREATE);
  const Handle space = makeSpace(shape);
  for (const VirtualPiece& piece : pieces) addPiece(creation, space, shape, piece, placeOf(path));
  check(H5Sselect_all(raw(space)), internal, "cannot select");
  Handle dataset = createDataset(handle_, path, type, space, creation, makeList(H5P_DATASET_ACCESS), placeOf(path));
  output_->throwFailure();
  return Dataset(std::move(dataset), placeOf(path), output_);
}

Dataset File::createReserved(const std::string& path, base::DType type, const base::Shape& shape) {
  const Lock lock;
  const Handle creation = makeCreationList(H5P_DATASET_CREATE);
  check(H5Pset_layout(raw(creation), H5D_CONTIGUOUS), internal, "cannot set a property");
  check(H5Pset_alloc_time(raw(creation), H5D_ALLOC_TIME_EARLY), internal, "cannot set a property");
  check(H5Pset_fill_time(raw(creation), H5D_FILL_TIME_NEVER), internal, "cannot set a property");
  Handle dataset =
      createDataset(handle_, path, type, makeSpace(shape), creation, makeList(H5P_DATASET_ACCESS), placeOf(path));
  output_->throwFailure();
  return Dataset(std::move(dataset), placeOf(path), output_);
}

Dataset File::dataset(const std::string& path, VirtualSources sources) const {
  const Lock lock;
  Dataset dataset(detail::openDataset(handle_, path, placeOf(path)), placeOf(path), output_);
  if (!output_) detail::checkStorage(handle_, path, dataset, size_, sources, path_);
  return dataset;
}

void File::writeText(const std::string& path, const std::string& text) {
  const Lock lock;
  createGroups(handle_, path, placeOf(path));
  const Handle type = detail::makeTextType(text.size());
  const Handle space(check(H5Screate(H5S_SCALAR), internal, "cannot make a space"));
  const Handle creation = makeCreationList(H5P_DATASET_CREATE);
  const Handle dataset(check(
      H5Dcreate2(raw(handle_), path.c_str(), raw(type), raw(space), raw(makeLinkList()), raw(creation), H5P_DEFAULT),
      ErrorKind::file, "cannot make the text " + placeOf(path)));
  check(H5Dwrite(raw(dataset), raw(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()), ErrorKind::file,
        "cannot write the text " + placeOf(path));
  output_->throwFailure();
}

std::string File::readText(const std::string& path) const {
  const Lock lock;
  const std::string place = placeOf(path);
  const Handle dataset = detail::openDataset(handle_, path, place);
  detail::checkNoForeignStorage(dataset, place);
  const Handle type(check(H5Dget_type(raw(dataset)), ErrorKind::badData, "cannot read the type of " + place));
  const Handle space(check(H5Dget_space(raw(dataset)), ErrorKind::badData, "cannot read the shape of " + place));
  const std::size_t size = detail::textLength(type, space, place);
  if (!output_ && size > H5Dget_storage_size(raw(dataset))) {
    throw Error(ErrorKind::badData, place + " claims to be longer than what its file holds of it");
  }
  std::string result(size, '\0');
  check(H5Dread(raw(dataset), raw(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, result.data()), ErrorKind::badData,
        "cannot read " + place);
  result.erase(result.find_last_not_of('\0') + 1);
  return result;
}

void File::setAttribute(const std::string& object, const std::string& name, const std::string& value) {
  const Lock lock;
  setTextAttributeOf(detail::openObject(handle_, object, placeOf(object)), name, value, placeOf(object));
  output_->throwFailure();
}

void File::setAttribute(const std::string& object, const std::string& name, std::int64_t value) {
  const Lock lock;
  setAttributeOf(detail::openObject(handle_, object, placeOf(object)), name, detail::makeType(base::DType::i64), &value,
                 placeOf(object));
  output_->throwFailure();
}

std::optional<std::string> File::textAttribute(const std::string& object, const std::string& name) const {
  const Lock lock;
  const Handle owner = detail::openObject(handle_, object, placeOf(object));
  if (H5Aexists(raw(owner), name.c_str()) <= 0) return std::nullopt;
  return detail::readTextAttribute(openAttribute(owner, name, placeOf(object)),
                                   "the attribute " + name + " of " + placeOf(object));
}

std::optional<std::int64_t> File::integerAttribute(const std::string& object, const std::string& name) const {
  const Lock lock;
  const Handle owner = detail::openObject(handle_, object, placeOf(object));
  if (H5Aexists(raw(owner), name.c_str()) <= 0) return std::nullopt;
  const std::string place = "the attribute " + name + " of " + placeOf(object);
  const Handle attribute = openAttribute(owner, name, placeOf(object));
  const Handle type(check(H5Aget_type(raw(attribute)), ErrorKind::badData, "cannot read the type of " + place));
  const Handle space(check(H5Aget_space(raw(attribute)), ErrorKind::badData, "cannot read the shape of " + place));
  if (H5Tget_class(raw(type)) != H5T_INTEGER || H5Sget_simple_extent_npoints(raw(space)) != 1) {
    throw Error(ErrorKind::badData, place + " is not one whole number");
  }
  std::int64_t value = 0;
  check(H5Aread(raw(attribute), raw(detail::makeType(base::DType::i64)), &value), ErrorKind::badData,
        "cannot read " + place);
  return value;
}

std::int64_t File::imageSize() {
  TANDEM_ASSERT(output_ && output_->inMemory(), "only a file held in memory has an image");
  close();
  return output_->size();
}

void File::copyImage(std::int64_t offset, std::span<std::byte> target) {
  TANDEM_ASSERT(output_ && output_->inMemory(), "only a file held in memory has an image");
  close();
  output_->read(offset, target);
}

std::vector<std::byte> File::image() {
  std::vector<std::byte> bytes(static_cast<std::size_t>(imageSize()));
  copyImage(0, bytes);
  return bytes;
}

void File::close() {
  const Lock lock;
  if (!handle_) return;
  check(H5Fclose(static_cast<hid_t>(handle_.release())), ErrorKind::file, "cannot close '" + path_.string() + "'");
  if (!output_) return;
  output_->close();
  output_->throwFailure();
}

}  // namespace tandem::hdf5
