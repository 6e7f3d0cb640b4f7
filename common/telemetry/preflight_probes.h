#pragma once
// The measurements of preflight. All ranks of a node measure at the same time, as they compute at the same time.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/comm/communicator.h"
#include "common/telemetry/health_sampler.h"
#include "common/telemetry/preflight_facts.h"
#include "kernels/backend.h"

namespace tandem::telemetry {

// Matrix products for so many seconds, long enough to see clocks sag, and each of the others for a tenth of that:
// matrix times vector, reading and copying memory, attention. In bfloat16 on a device, in float32 on processors. Fills
// readings, with what the sampler saw meanwhile. Collective.
void measureCompute(comm::Communicator& world, kernels::Backend& backend, kernels::Stream& stream,
                    HealthSampler& sampler, double seconds, RankFacts& facts);

// Bytes per second that this rank reads of memory much larger than caches, by the kernels, for so many seconds.
// Collective: all ranks at the same time.
double measureReadBandwidth(comm::Communicator& world, kernels::Backend& backend, kernels::Stream& stream,
                            double seconds);

// Messages between every pair, there and back, and all-gathers, by size. Pairs without a rank in common talk at the
// same time. `exchange` is the group for memory of devices; null: memory of the host, over `world`. Collective; the
// same result on every rank.
LinkFacts measureLinks(comm::Communicator& world, comm::Communicator* exchange, kernels::Backend& backend,
                       kernels::Stream& stream, std::int64_t largestMessage, std::int64_t largestGather);

// Seconds that this rank's clock is ahead of rank 0's, by the quickest of some answers. Collective.
double measureClockSkew(comm::Communicator& world);

struct DiskFacts {
  std::int64_t freeBytes = 0;
  double bytesPerSecond = 0;  // written and synced
};
// Of a folder that need not exist yet: where it would be. Leaves nothing behind.
DiskFacts measureDisk(const std::filesystem::path& folder, std::int64_t bytes);

// Of a whole file up to 64 MiB; of its size and of blocks spread over it when it is larger.
std::string hashOfContent(const std::filesystem::path& file);

}  // namespace tandem::telemetry
