#pragma once
// One rank's part of a dataset that all ranks write together, in the order of the ranks.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/files.h"
#include "common/comm/communicator.h"
#include "common/data/dataset.h"

namespace tandem::data::detail {

struct PartTotals {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t textBytes = 0;
};

// Set on a token that may be a target, in a part with a loss mask; no vocabulary reaches so far.
constexpr std::uint32_t targetBit = std::uint32_t{1} << 31;

// Rank 0 writes its part to the dataset itself, without a detour; the others keep theirs in a file that has lost its
// name as soon as it is opened, so that no end of the program leaves it behind.
class Part {
 public:
  Part(int rank, const std::filesystem::path& output, std::int64_t vocabularySize, bool withLossMask = false);

  // The tokens of a document, or of a piece of one that an earlier piece, maybe on the rank before, has started.
  void add(bool startsDocument, std::span<const std::uint32_t> tokens, std::int64_t textBytes);

  // Brings all parts to rank 0 and returns the totals on every rank. Collective; throws on every rank.
  PartTotals collect(comm::Communicator& communicator);

  // On rank 0 gives the dataset its name, elsewhere does nothing.
  void finish(const DatasetDescription& description);

 private:
  void write(std::span<const std::uint32_t> tokens);
  void flush();
  void send(comm::Communicator& communicator);
  void receive(comm::Communicator& communicator, int source);

  bool withLossMask_;
  std::unique_ptr<DatasetWriter> writer_;  // on rank 0
  std::optional<base::File> spool_;        // elsewhere
  std::vector<std::uint32_t> pending_;     // tokens on the way to the spool
  std::int64_t spooled_ = 0;
  std::vector<std::int64_t> starts_;  // in tokens of this part
  std::optional<base::Error> failure_;
  PartTotals totals_;
};

}  // namespace tandem::data::detail
