#pragma once
// The folders of a run: their names, and the renames that make a step appear and disappear as a whole.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tandem::checkpoint::detail {

inline constexpr const char* indexName = "checkpoint.h5";
inline constexpr const char* checksumsName = "checksums.xxh128";

std::filesystem::path stepsFolder(const std::filesystem::path& run);
std::string stepName(std::int64_t step);  // "step-00000100"
std::optional<std::int64_t> parseStepName(const std::string& name);
std::filesystem::path partialFolder(const std::filesystem::path& run, std::int64_t step);
std::string shardName(int rank, int ranks);  // "shard-00003-of-00008.h5"

// Steps under their final names, ascending, whether they are intact or not.
std::vector<std::int64_t> stepsOf(const std::filesystem::path& run);

// The functions below are called by the holder of the lock only.

// Removes what an interrupted save or deletion left.
void removeLeftovers(const std::filesystem::path& run);
// Makes the folder that a step is written into, empty.
std::filesystem::path makePartial(const std::filesystem::path& run, std::int64_t step);
// Gives a complete partial folder its final name, durably. A step that stands there already is replaced.
void publish(const std::filesystem::path& run, std::int64_t step);
// Deletes all but the newest `keep` of the steps up to this one, and but the step `besides`. Failures are logged.
void deleteOldSteps(const std::filesystem::path& run, std::int64_t newest, int keep, std::int64_t besides = -1);
// Removes the folder that a failed save leaves; failures are logged.
void removePartial(const std::filesystem::path& run, std::int64_t step);

}  // namespace tandem::checkpoint::detail
