#include "common/runtime/decoding_speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/base/random.h"

namespace tandem::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t warmUpTokens = 4;  // a step is recorded at its second run and replayed from the third

struct Times {
  double meanFirstToken = 0, prompts = 0, decoding = 0;  // seconds
};

std::vector<GenerationRequest> randomRequests(std::int64_t vocabularySize, const SpeedCase& what) {
  base::RandomStream random(0, base::purposeOf("prompts to measure speed with"));
  std::vector<GenerationRequest> requests;
  for (std::int64_t sequence = 0; sequence < what.batch; ++sequence) {
    GenerationRequest request{.maxTokens = what.generatedTokens, .sequence = static_cast<std::uint64_t>(sequence)};
    for (std::int64_t i = 0; i < what.promptTokens; ++i) {
      request.prompt.push_back(static_cast<std::int32_t>(random.nextBelow(static_cast<std::uint64_t>(vocabularySize))));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

Times timeOne(Generator& generator, const std::vector<GenerationRequest>& requests) {
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<double> firstTokens(requests.size(), -1);
  generator.run(requests, {.temperature = 0}, [&](std::int64_t request, std::int32_t) {
    double& first = firstTokens[static_cast<std::size_t>(request)];
    if (first < 0) first = elapsed();
    return true;
  });
  const double end = elapsed(), prompts = std::ranges::max(firstTokens);
  return {
      .meanFirstToken = std::reduce(firstTokens.begin(), firstTokens.end()) / static_cast<double>(firstTokens.size()),
      .prompts = prompts,
      .decoding = end - prompts};
}

}  // namespace

MeanAndDeviation meanAndDeviation(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::reduce(values.begin(), values.end()) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {.mean = mean, .deviation = values.size() > 1 ? std::sqrt(squares / (count - 1)) : 0};
}

SpeedResult measureSpeed(Generator& generator, std::int64_t vocabularySize, const SpeedCase& what, int repetitions,
                         comm::Communicator& world, int copies) {
  TANDEM_ASSERT(what.generatedTokens >= 1 && repetitions >= 1, "something to measure");
  std::vector<GenerationRequest> requests = randomRequests(vocabularySize, what);
  const auto writeUpTo = [&](std::int64_t tokens) {
    for (GenerationRequest& request : requests) request.maxTokens = std::min(tokens, what.generatedTokens);
  };
  writeUpTo(warmUpTokens);
  comm::agreeOn(world, [&] { timeOne(generator, requests); });
  writeUpTo(what.generatedTokens);
  const auto sequences = static_cast<double>(what.batch * copies);
  const auto steps = static_cast<double>(what.generatedTokens - 1);
  std::vector<double> latencies, promptRates, decodeRates;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    world.barrier();
    Times times;
    comm::agreeOn(world, [&] { times = timeOne(generator, requests); });
    latencies.push_back(comm::allReduceScalar(world, times.meanFirstToken) / world.size());
    promptRates.push_back(sequences * static_cast<double>(what.promptTokens) /
                          comm::allReduceScalar(world, times.prompts, comm::Reduction::maximum));
    decodeRates.push_back(sequences * steps / comm::allReduceScalar(world, times.decoding, comm::Reduction::maximum));
  }
  SpeedResult result{.firstTokenSeconds = meanAndDeviation(latencies), .promptRate = meanAndDeviation(promptRates)};
  if (what.generatedTokens > 1) {
    // The first step finds the prompt in the cache and adds a token to it.
    const double meanCached = static_cast<double>(what.promptTokens) + (steps + 1) / 2;
    const double bytesOfStep =
        static_cast<double>(generator.weightBytesOfStep()) +
        static_cast<double>(what.batch) * meanCached * static_cast<double>(generator.cacheBytesOfToken());
    result.decodeRate = meanAndDeviation(decodeRates);
    result.decodeBytesPerSecond = bytesOfStep * result.decodeRate->mean / sequences;
  }
  return result;
}

}  // namespace tandem::runtime
