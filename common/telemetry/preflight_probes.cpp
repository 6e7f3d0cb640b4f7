#include "common/telemetry/preflight_probes.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/hash.h"

namespace tandem::telemetry {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t mebibyte = std::int64_t{1} << 20;

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// The nearest folder above that exists.
fs::path existing(fs::path folder) {
  folder = fs::absolute(folder);
  while (!fs::is_directory(folder) && folder != folder.root_path()) folder = folder.parent_path();
  return folder;
}

}  // namespace

double measureClockSkew(comm::Communicator& world) {
  constexpr int rounds = 5;
  double skew = 0;
  for (int peer = 1; peer < world.size(); ++peer) {
    double quickest = 0;
    for (int round = 0; round < rounds; ++round) {
      double time = now();
      if (world.rank() == 0) {
        world.receive({&time, base::DType::f64, 1}, peer, 0);
        time = now();
        world.send({&time, base::DType::f64, 1}, peer, 0);
      } else if (world.rank() == peer) {
        const double asked = time;
        double answer = 0;
        world.send({&asked, base::DType::f64, 1}, 0, 0);
        world.receive({&answer, base::DType::f64, 1}, 0, 0);
        const double answered = now();
        if (round > 0 && answered - asked >= quickest) continue;
        quickest = answered - asked;
        skew = (asked + answered) / 2 - answer;
      }
    }
  }
  return skew;
}

DiskFacts measureDisk(const fs::path& folder, std::int64_t bytes) {
  const fs::path place = existing(folder);
  DiskFacts facts;
  std::error_code failed;
  const fs::space_info space = fs::space(place, failed);
  if (failed) {
    throw base::Error(base::ErrorKind::file, "cannot ask '" + place.string() + "' for its space: " + failed.message());
  }
  facts.freeBytes = static_cast<std::int64_t>(space.available);
  const std::vector<std::byte> block(static_cast<std::size_t>(4 * mebibyte), std::byte{0x5a});
  const fs::path path = place / (".tandem-preflight-" + base::identity().host + "-" + std::to_string(getpid()));
  const auto start = std::chrono::steady_clock::now();
  std::int64_t written = 0;
  try {
    const base::File file = base::File::create(path);
    const std::int64_t most = std::min(bytes, facts.freeBytes / 2);
    for (; written + static_cast<std::int64_t>(block.size()) <= most;
         written += static_cast<std::int64_t>(block.size())) {
      file.writeAt(written, block);
    }
    file.sync();
  } catch (...) {
    fs::remove(path, failed);
    throw;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fs::remove(path, failed);
  facts.bytesPerSecond = static_cast<double>(written) / seconds;
  return facts;
}

std::string hashOfContent(const fs::path& path) {
  constexpr std::int64_t blocks = 64;
  const base::File file = base::File::openForReading(path);
  const std::int64_t size = file.size();
  std::vector<std::byte> block(static_cast<std::size_t>(mebibyte));
  base::Hasher hasher;
  hasher.update(std::as_bytes(std::span(&size, 1)));
  const std::int64_t stride = std::max(mebibyte, (size - mebibyte) / (blocks - 1));
  for (std::int64_t offset = 0; offset < size; offset += stride) {
    const std::int64_t got = file.readAt(offset, block);
    hasher.update(std::span(block).first(static_cast<std::size_t>(got)));
  }
  return hasher.hex();
}

}  // namespace tandem::telemetry
