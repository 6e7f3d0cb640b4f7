// Messages and all-gathers between ranks, by size.

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/json.h"
#include "common/runtime/executable.h"
#include "common/telemetry/preflight_probes.h"

namespace tandem::telemetry {
namespace {

using base::DType;
using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Enough to see past chance, little enough to be quick.
int repetitions(std::int64_t bytes) { return static_cast<int>(std::clamp<std::int64_t>((16 << 20) / bytes, 2, 100)); }

std::vector<std::int64_t> sizesUpTo(std::int64_t largest) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t bytes : {std::int64_t{8}, std::int64_t{1} << 16, std::int64_t{1} << 20}) {
    if (bytes < largest) sizes.push_back(bytes);
  }
  sizes.push_back(largest);
  return sizes;
}

class LinkProbe {
 public:
  LinkProbe(comm::Communicator& world, comm::Communicator* exchange, kernels::Backend& backend, kernels::Stream& stream,
            std::int64_t bytes)
      : world_(world), ranks_(exchange != nullptr ? *exchange : world), stream_(stream), memory_(backend, bytes) {
    backend.run(kernels::Fill{.target = kernels::TensorView(memory_.data(), DType::f32, {bytes / 4}), .value = 1.0f},
                stream);
    stream.synchronize();
  }

  // One way, by half of there and back. Both of the pair call it.
  double messageSeconds(int partner, std::int64_t bytes) {
    const int times = repetitions(bytes);
    thereAndBack(partner, bytes);  // connects
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < times; ++i) thereAndBack(partner, bytes);
    return secondsSince(start) / (2.0 * times);
  }

  GatherRate gather(std::int64_t bytes) {
    const std::int64_t own = bytes / ranks_.size() / 4 * 4;
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks_.size()), own);
    const int times = repetitions(bytes);
    double seconds = 0;
    for (int i = -1; i < times; ++i) {  // the first one connects
      world_.barrier();
      const Clock::time_point start = Clock::now();
      ranks_.allGather({memory_.data() + own * ranks_.rank(), DType::u8, own},
                       {memory_.data(), DType::u8, own * ranks_.size()}, counts);
      stream_.synchronize();
      if (i >= 0) seconds += comm::allReduceScalar(world_, secondsSince(start), comm::Reduction::maximum);
    }
    return {own * ranks_.size(), static_cast<double>(own * (ranks_.size() - 1)) * times / seconds};
  }

 private:
  void thereAndBack(int partner, std::int64_t bytes) {
    const bool first = ranks_.rank() < partner;
    for (const bool sends : {first, !first}) {
      if (sends) {
        ranks_.send({memory_.data(), DType::u8, bytes}, partner, 1);
      } else {
        ranks_.receive({memory_.data(), DType::u8, bytes}, partner, 1);
      }
    }
    stream_.synchronize();
  }

  comm::Communicator& world_;
  comm::Communicator& ranks_;
  kernels::Stream& stream_;
  runtime::DeviceMemory memory_;
};

// The partner of a rank in a round of a tournament where everybody meets everybody once (circle method: one stays, the
// others move on by one place each round); -1 for a rest.
int partnerInRound(int rank, int ranks, int round) {
  const int places = ranks + ranks % 2, moving = places - 1;
  int partner = moving;
  if (rank == moving) {
    // Meets the one that would otherwise meet itself: 2 x = round (mod moving).
    partner = round % 2 == 0 ? round / 2 : (round + moving) / 2;
  } else {
    const int other = ((round - rank) % moving + moving) % moving;
    if (other != rank) partner = other;
  }
  return partner < ranks ? partner : -1;
}

}  // namespace

LinkFacts measureLinks(comm::Communicator& world, comm::Communicator* exchange, kernels::Backend& backend,
                       kernels::Stream& stream, std::int64_t largestMessage, std::int64_t largestGather) {
  LinkFacts facts{.transport = (exchange != nullptr ? *exchange : world).description(),
                  .isOfDevices = exchange != nullptr};
  if (world.size() == 1) return facts;
  LinkProbe probe(world, exchange, backend, stream, std::max(largestMessage, largestGather));
  for (const std::int64_t bytes : sizesUpTo(largestGather)) {
    if (bytes >= 4 * world.size()) facts.gathers.push_back(probe.gather(bytes));
  }
  nlohmann::json own = nlohmann::json::array();
  const int rounds = world.size() + world.size() % 2 - 1;
  for (int round = 0; round < rounds; ++round) {
    world.barrier();
    const int partner = partnerInRound(world.rank(), world.size(), round);
    if (partner < 0) continue;
    for (const std::int64_t bytes : sizesUpTo(largestMessage)) {
      const double seconds = probe.messageSeconds(partner, bytes);
      if (world.rank() < partner) own.push_back({world.rank(), partner, bytes, seconds});
    }
  }
  for (const std::string& text : comm::allGatherTexts(world, base::jsonText(own))) {
    for (const auto& pair : base::parseJson(text)) facts.pairs.push_back({pair[0], pair[1], pair[2], pair[3]});
  }
  return facts;
}

}  // namespace tandem::telemetry
