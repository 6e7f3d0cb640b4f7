#include "common/comm/communicator.h"

#include <array>

namespace tandem::comm {
namespace {

template <class Value>
Value reduceOne(Communicator& communicator, Value value, base::DType type, Reduction reduction) {
  communicator.allReduce({.data = &value, .type = type, .count = 1}, reduction);
  return value;
}

}  // namespace

double allReduceScalar(Communicator& communicator, double value, Reduction reduction) {
  return reduceOne(communicator, value, base::DType::f64, reduction);
}

std::int64_t allReduceScalar(Communicator& communicator, std::int64_t value, Reduction reduction) {
  return reduceOne(communicator, value, base::DType::i64, reduction);
}

std::string broadcastText(Communicator& communicator, std::string text, int root) {
  auto length = static_cast<std::int64_t>(text.size());
  communicator.broadcast({.data = &length, .type = base::DType::i64, .count = 1}, root);
  text.resize(static_cast<std::size_t>(length));
  communicator.broadcast({.data = text.data(), .type = base::DType::u8, .count = length}, root);
  return text;
}

std::vector<std::string> allGatherTexts(Communicator& communicator, const std::string& text) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const std::vector<std::int64_t> one(ranks, 1);
  std::vector<std::int64_t> lengths(ranks);
  const auto length = static_cast<std::int64_t>(text.size());
  communicator.allGather({&length, base::DType::i64, 1},
                         {.data = lengths.data(), .type = base::DType::i64, .count = communicator.size()}, one);
  std::int64_t total = 0;
  for (const std::int64_t each : lengths) total += each;
  std::string joined(static_cast<std::size_t>(total), '\0');
  communicator.allGather({text.data(), base::DType::u8, length},
                         {.data = joined.data(), .type = base::DType::u8, .count = total}, lengths);
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::int64_t each : lengths) {
    texts.push_back(joined.substr(at, static_cast<std::size_t>(each)));
    at += static_cast<std::size_t>(each);
  }
  return texts;
}

}  // namespace tandem::comm
