#pragma once
// What is checked before anything of a foreign file is used.

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/hdf5/hdf5.h"

namespace tandem::hdf5::detail {

enum class Link { absent, hard, refused };

// Where a path of a file leads; refused when it passes a soft, external or user-defined link.
Link followLinks(const Handle& file, const std::string& path);

// The object at a path. Errors are of kind badData.
Handle openObject(const Handle& file, const std::string& path, const std::string& place);
Handle openDataset(const Handle& file, const std::string& path, const std::string& place);

// Refuses data in files outside of HDF5's control, and virtual datasets.
void checkNoForeignStorage(const Handle& dataset, const std::string& place);

// Checks that a dataset has all the storage that its shape claims, inside of a file of that size, or of allowed
// sources.
void checkStorage(const Handle& file, const std::string& path, const Dataset& dataset, std::int64_t fileSize,
                  VirtualSources sources, const std::filesystem::path& filePath);

}  // namespace tandem::hdf5::detail
