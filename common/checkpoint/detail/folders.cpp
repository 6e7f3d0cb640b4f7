#include "common/checkpoint/detail/folders.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/log.h"

namespace tandem::checkpoint::detail {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;

constexpr const char* partialSuffix = ".partial";
constexpr const char* deletingSuffix = ".deleting";

fs::path pathOf(const fs::path& run, std::int64_t step, const char* suffix = "") {
  return stepsFolder(run) / (stepName(step) + suffix);
}

[[noreturn]] void fail(const std::string& what, const fs::path& path, int errorNumber) {
  throw Error(ErrorKind::file, what + " " + path.string() + ": " + base::systemErrorText(errorNumber));
}

void renameFolder(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("cannot rename " + from.string() + " to", to, errno);
}

void removeAll(const fs::path& folder) {
  std::error_code failure;
  fs::remove_all(folder, failure);
  if (failure) fail("cannot remove the folder", folder, failure.value());
}

// Exchanges two folders at once. False where the file system cannot.
bool exchange(const fs::path& one, const fs::path& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP) return false;
  fail("cannot exchange " + one.string() + " and", other, errno);
}

// A step that is half deleted must not look like one: it is renamed first.
void discard(const fs::path& folder, const fs::path& deleting) {
  removeAll(deleting);
  renameFolder(folder, deleting);
  removeAll(deleting);
}

template <class Work>
void logFailure(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    TANDEM_LOG_ALL(warning) << error.message();
  }
}

bool isLeftover(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos || !parseStepName(name.substr(0, dot))) return false;
  return name.substr(dot) == partialSuffix || name.substr(dot) == deletingSuffix;
}

}  // namespace

fs::path stepsFolder(const fs::path& run) { return run / "checkpoints"; }

std::string stepName(std::int64_t step) {
  char text[40];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

std::optional<std::int64_t> parseStepName(const std::string& name) {
  constexpr std::size_t prefix = 5;
  const bool isStep = name.starts_with("step-") && name.size() >= prefix + 8 && name.size() <= prefix + 18 &&
                      name.find_first_not_of("0123456789", prefix) == std::string::npos;
  if (!isStep) return std::nullopt;
  return std::stoll(name.substr(prefix));
}

fs::path partialFolder(const fs::path& run, std::int64_t step) { return pathOf(run, step, partialSuffix); }

std::string shardName(int rank, int ranks) {
  char text[60];
  std::snprintf(text, sizeof text, "shard-%05d-of-%05d.h5", rank, ranks);
  return text;
}

std::vector<std::int64_t> stepsOf(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;  // no folder: no steps
  for (const fs::directory_entry& entry : fs::directory_iterator(stepsFolder(run), ignored)) {
    if (const auto step = parseStepName(entry.path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void removeLeftovers(const fs::path& run) {
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(stepsFolder(run))) {
    if (isLeftover(entry.path().filename().string())) leftovers.push_back(entry.path());
  }
  for (const fs::path& leftover : leftovers) {
    TANDEM_LOG(info) << "removing " << leftover.string() << ", left by an interrupted run";
    removeAll(leftover);
  }
}

fs::path makePartial(const fs::path& run, std::int64_t step) {
  const fs::path folder = partialFolder(run, step);
  removeAll(folder);
  std::error_code failure;
  fs::create_directory(folder, failure);
  if (failure) fail("cannot create the folder", folder, failure.value());
  return folder;
}

void publish(const fs::path& run, std::int64_t step) {
  const fs::path partial = partialFolder(run, step);
  const fs::path final = pathOf(run, step);
  const fs::path deleting = pathOf(run, step, deletingSuffix);
  if (!fs::exists(final)) {
    renameFolder(partial, final);
  } else if (exchange(partial, final)) {
    base::syncFolder(stepsFolder(run));
    logFailure([&] { discard(partial, deleting); });
  } else {
    removeAll(deleting);
    renameFolder(final, deleting);
    renameFolder(partial, final);
    base::syncFolder(stepsFolder(run));
    logFailure([&] { removeAll(deleting); });
  }
  base::syncFolder(stepsFolder(run));
}

void deleteOldSteps(const fs::path& run, std::int64_t newest, int keep, std::int64_t besides) {
  if (keep <= 0) return;
  std::vector<std::int64_t> steps = stepsOf(run);
  std::erase_if(steps, [&](std::int64_t step) { return step > newest; });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < steps.size(); ++i) {
    if (steps[i] == besides) continue;
    logFailure([&] { discard(pathOf(run, steps[i]), pathOf(run, steps[i], deletingSuffix)); });
  }
}

void removePartial(const fs::path& run, std::int64_t step) {
  logFailure([&] { removeAll(partialFolder(run, step)); });
}

}  // namespace tandem::checkpoint::detail
