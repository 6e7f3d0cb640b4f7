#pragma once
// How fast a model reads prompts and writes answers, measured over repetitions.
//
// A repetition writes `batch` answers with every copy of the model at once. Its times are taken where the caller of a
// Generator sees tokens, so choosing a token is part of them: latency is from the beginning to a sequence's first token
// (prompts of a batch are read one after the other); the prompts' time ends with the last first token; decoding is the
// rest.

#include <cstdint>
#include <optional>
#include <span>

#include "common/comm/communicator.h"
#include "common/runtime/generator.h"

namespace tandem::runtime {

struct SpeedCase {
  std::int64_t promptTokens = 0;
  std::int64_t generatedTokens = 0;  // of each sequence
  std::int64_t batch = 1;            // sequences of a copy of the model
};

struct MeanAndDeviation {
  double mean = 0;
  double deviation = 0;  // of a sample; 0 of a single value
};
MeanAndDeviation meanAndDeviation(std::span<const double> values);

struct SpeedResult {
  MeanAndDeviation firstTokenSeconds;  // over sequences and ranks, then over repetitions
  // Tokens per second of all ranks together, by the slowest of them.
  MeanAndDeviation promptRate;
  std::optional<MeanAndDeviation> decodeRate;  // none where only the first token is written
  // Bytes per second that one rank reads at least while it decodes: each step the weights and all that is cached.
  std::optional<double> decodeBytesPerSecond;
};

// Prompts are random tokens, answers the likeliest ones. One shorter run goes before and does not count. `copies` of
// the model are on the ranks of `world`. Collective. Throws Error of kind usage where prompt and answer do not fit the
// generator's capacity.
SpeedResult measureSpeed(Generator& generator, std::int64_t vocabularySize, const SpeedCase& what, int repetitions,
                         comm::Communicator& world, int copies);

}  // namespace tandem::runtime
