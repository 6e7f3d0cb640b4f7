#include "common/hdf5/detail/checks.h"

#include <vector>

#include "common/hdf5/detail/library.h"

namespace tandem::hdf5::detail {
namespace {

using base::Error;
using base::ErrorKind;
constexpr ErrorKind badData = ErrorKind::badData;

Handle creationListOf(const Handle& dataset, const std::string& place) {
  return Handle(check(H5Dget_create_plist(raw(dataset)), badData, "cannot read the layout of " + place));
}

Handle openUnchecked(const Handle& file, const std::string& path, const std::string& place) {
  const Handle access(check(H5Pcreate(H5P_DATASET_ACCESS), ErrorKind::device, "cannot make a property list"));
  check(H5Pset_virtual_prefix(raw(access), "${ORIGIN}"), ErrorKind::device, "cannot set a property");
  return Handle(check(H5Dopen2(raw(file), path.c_str(), raw(access)), badData, "cannot open the dataset " + place));
}

template <class Get>  // HDF5's way: ask for the length, then for the text
std::string textOf(const Get& get) {
  const ssize_t length = get(nullptr, 0);
  if (length < 0) fail(badData, "cannot read the name of a source");
  std::vector<char> text(static_cast<std::size_t>(length) + 1);
  get(text.data(), text.size());
  return std::string(text.data(), static_cast<std::size_t>(length));
}

// The elements that a source contributes.
std::int64_t checkSource(const Handle& creation, std::size_t index, const std::string& place,
                         const std::filesystem::path& folder, base::DType type) {
  const hid_t list = raw(creation);
  const std::string name =
      textOf([&](char* text, std::size_t size) { return H5Pget_virtual_filename(list, index, text, size); });
  const std::string path =
      textOf([&](char* text, std::size_t size) { return H5Pget_virtual_dsetname(list, index, text, size); });
  const auto refuse = [&](const std::string& why) {
    throw Error(badData, place + " is virtual, and its source " + name + ":" + path + " " + why);
  };
  if (!name.starts_with("shard-") || name.find_first_of("/%") != std::string::npos) {
    refuse("is none of the shards beside it");
  }
  const Handle sourceSpace(check(H5Pget_virtual_srcspace(list, index), badData, "cannot read a source of " + place));
  const Handle targetSpace(check(H5Pget_virtual_vspace(list, index), badData, "cannot read a source of " + place));
  // HDF5 does not store the length of a source, only what is selected of it.
  const hssize_t needed = H5Sget_simple_extent_npoints(raw(sourceSpace));
  const File file = File::open(folder / name);
  const Dataset source = file.dataset(path);
  if (source.type() != type) refuse("has another type");
  if (source.shape().rank() != 1 || source.count() < needed) refuse("is too short or not of one dimension");
  const hssize_t elements = H5Sget_select_npoints(raw(targetSpace));
  if (elements < 0 || elements != H5Sget_select_npoints(raw(sourceSpace))) refuse("is mapped without bounds");
  return elements;
}

void checkSources(const Dataset& dataset, const Handle& creation, const std::string& place,
                  const std::filesystem::path& folder) {
  std::size_t sources = 0;
  check(H5Pget_virtual_count(raw(creation), &sources), badData, "cannot read the sources of " + place);
  const base::DType type = dataset.type();
  std::int64_t covered = 0;
  for (std::size_t index = 0; index < sources; ++index) covered += checkSource(creation, index, place, folder, type);
  if (covered != dataset.count()) {
    throw Error(badData, "the sources of " + place + " give " + std::to_string(covered) + " of its " +
                             std::to_string(dataset.count()) + " elements");
  }
}

// A deflated chunk can stand for at most this many times its size.
constexpr std::int64_t largestCompression = 1100;

void checkSize(const Handle& handle, const Handle& creation, const Dataset& dataset, std::int64_t fileSize,
               const std::string& place) {
  const std::int64_t bytes = dataset.count() * base::byteSize(dataset.type());
  const auto stored = static_cast<std::int64_t>(H5Dget_storage_size(raw(handle)));
  const bool chunked = H5Pget_layout(raw(creation)) == H5D_CHUNKED;
  const std::int64_t largest = chunked && H5Pget_nfilters(raw(creation)) > 0 ? largestCompression : 1;
  if (stored > fileSize || bytes / largest > stored) {
    throw Error(badData, place + " needs " + std::to_string(bytes) + " bytes, but its file, of " +
                             std::to_string(fileSize) + " bytes, holds " + std::to_string(stored) +
                             " of it: the file is truncated, damaged, or was never filled");
  }
  const haddr_t offset = H5Pget_layout(raw(creation)) == H5D_CONTIGUOUS ? H5Dget_offset(raw(handle)) : HADDR_UNDEF;
  H5Eclear2(H5E_DEFAULT);
  if (offset != HADDR_UNDEF && static_cast<std::int64_t>(offset) > fileSize - stored) {
    throw Error(badData, place + " ends behind the end of its file: the file is truncated or damaged");
  }
}

}  // namespace

Link followLinks(const Handle& file, const std::string& path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t slash = path.find('/', begin);
    const std::size_t end = slash == std::string::npos ? path.size() : slash;
    if (end > begin) {
      const std::string part = path.substr(0, end);
      H5L_info_t information;
      if (H5Lexists(raw(file), part.c_str(), H5P_DEFAULT) <= 0 ||
          H5Lget_info(raw(file), part.c_str(), &information, H5P_DEFAULT) < 0) {
        H5Eclear2(H5E_DEFAULT);
        return Link::absent;
      }
      if (information.type != H5L_TYPE_HARD) return Link::refused;
    }
    begin = end + 1;
  }
  return Link::hard;
}

Handle openObject(const Handle& file, const std::string& path, const std::string& place) {
  switch (followLinks(file, path)) {
    case Link::absent:
      throw Error(badData, "there is no " + place);
    case Link::refused:
      throw Error(badData, place + " is a soft or external link, which is not followed");
    case Link::hard:
      break;
  }
  return Handle(check(H5Oopen(raw(file), path.c_str(), H5P_DEFAULT), badData, "cannot open " + place));
}

Handle openDataset(const Handle& file, const std::string& path, const std::string& place) {
  if (H5Iget_type(raw(openObject(file, path, place))) != H5I_DATASET) throw Error(badData, place + " is no dataset");
  return openUnchecked(file, path, place);
}

void checkNoForeignStorage(const Handle& dataset, const std::string& place) {
  const Handle creation = creationListOf(dataset, place);
  if (H5Pget_external_count(raw(creation)) != 0) throw Error(badData, place + " keeps its data in other files");
  if (H5Pget_layout(raw(creation)) == H5D_VIRTUAL) {
    throw Error(badData, place + " is a virtual dataset, which is not expected here");
  }
}

void checkStorage(const Handle& file, const std::string& path, const Dataset& dataset, std::int64_t fileSize,
                  VirtualSources sources, const std::filesystem::path& filePath) {
  const std::string place = filePath.string() + ":" + path;
  const Handle handle = openUnchecked(file, path, place);
  const Handle creation = creationListOf(handle, place);
  if (sources == VirtualSources::shards && dataset.isVirtual()) {
    checkSources(dataset, creation, place, filePath.parent_path());
    return;
  }
  checkNoForeignStorage(handle, place);
  checkSize(handle, creation, dataset, fileSize, place);
}

}  // namespace tandem::hdf5::detail
