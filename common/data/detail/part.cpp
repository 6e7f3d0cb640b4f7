#include "common/data/detail/part.h"

#include <algorithm>

#include "common/base/error.h"

namespace tandem::data::detail {
namespace {

constexpr std::size_t pieceTokens = std::size_t{1} << 20;
constexpr int tag = 2;

base::File openNameless(const std::filesystem::path& output, int rank) {
  const std::filesystem::path path = output.string() + ".rank-" + std::to_string(rank) + ".partial";
  base::File file = base::File::create(path);
  std::filesystem::remove(path);
  return file;
}

}  // namespace

Part::Part(int rank, const std::filesystem::path& output, std::int64_t vocabularySize, bool withLossMask)
    : withLossMask_(withLossMask) {
  if (rank == 0) {
    writer_ = std::make_unique<DatasetWriter>(output, vocabularySize, withLossMask);
  } else {
    spool_ = openNameless(output, rank);
  }
}

void Part::add(bool startsDocument, std::span<const std::uint32_t> tokens, std::int64_t textBytes) {
  if (writer_) {
    if (startsDocument) writer_->beginDocument();
    write(tokens);
  } else {
    if (startsDocument) starts_.push_back(totals_.tokens);
    pending_.insert(pending_.end(), tokens.begin(), tokens.end());
    if (pending_.size() >= pieceTokens) flush();
  }
  totals_.documents += startsDocument;
  totals_.tokens += static_cast<std::int64_t>(tokens.size());
  totals_.textBytes += textBytes;
}

void Part::write(std::span<const std::uint32_t> tokens) {
  if (!withLossMask_) return writer_->append(tokens);
  std::vector<std::uint32_t> ids(tokens.size());
  std::vector<std::uint8_t> mask(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ids[i] = tokens[i] & ~targetBit;
    mask[i] = (tokens[i] & targetBit) != 0;
  }
  writer_->append(ids, mask);
}

void Part::flush() {
  spool_->writeAt(spooled_ * 4, std::as_bytes(std::span(pending_)));
  spooled_ += static_cast<std::int64_t>(pending_.size());
  pending_.clear();
}

void Part::send(comm::Communicator& communicator) {
  const std::int64_t counts[2] = {static_cast<std::int64_t>(starts_.size()), totals_.tokens};
  communicator.send({counts, base::DType::i64, 2}, 0, tag);
  communicator.send({starts_.data(), base::DType::i64, counts[0]}, 0, tag);
  std::vector<std::uint32_t> piece(pieceTokens);
  for (std::int64_t sent = 0; sent < totals_.tokens;) {
    piece.resize(static_cast<std::size_t>(std::min<std::int64_t>(pieceTokens, totals_.tokens - sent)));
    const std::span<const std::uint32_t> kept(pending_);
    try {
      if (sent < spooled_) {
        piece.resize(static_cast<std::size_t>(std::min<std::int64_t>(pieceTokens, spooled_ - sent)));
        spool_->readAt(sent * 4, std::as_writable_bytes(std::span(piece)));
      } else {
        const auto from = kept.subspan(static_cast<std::size_t>(sent - spooled_), piece.size());
        std::ranges::copy(from, piece.begin());
      }
    } catch (const base::Error& error) {
      failure_ = error;  // rank 0 waits for all tokens; it learns of this afterwards
    }
    const auto count = static_cast<std::int64_t>(piece.size());
    communicator.send({&count, base::DType::i64, 1}, 0, tag);
    communicator.send({piece.data(), base::DType::u32, count}, 0, tag);
    sent += count;
  }
}

void Part::receive(comm::Communicator& communicator, int source) {
  std::int64_t counts[2] = {};
  communicator.receive({counts, base::DType::i64, 2}, source, tag);
  std::vector<std::int64_t> starts(static_cast<std::size_t>(counts[0]));
  communicator.receive({starts.data(), base::DType::i64, counts[0]}, source, tag);
  std::vector<std::uint32_t> piece;
  std::size_t nextStart = 0;
  for (std::int64_t received = 0; received < counts[1];) {
    std::int64_t count = 0;
    communicator.receive({&count, base::DType::i64, 1}, source, tag);
    piece.resize(static_cast<std::size_t>(count));
    communicator.receive({piece.data(), base::DType::u32, count}, source, tag);
    // After a failure, a full disk say, the rest is still taken, so that no rank is left sending.
    if (failure_) {
      received += count;
      continue;
    }
    try {
      for (std::int64_t at = 0; at < count;) {
        if (nextStart < starts.size() && starts[nextStart] == received + at) {
          writer_->beginDocument();
          ++nextStart;
        }
        const std::int64_t end = nextStart < starts.size() ? std::min(count, starts[nextStart] - received) : count;
        write(std::span(piece).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(end - at)));
        at = end;
      }
    } catch (const base::Error& error) {
      failure_ = error;
    }
    received += count;
  }
}

PartTotals Part::collect(comm::Communicator& communicator) {
  if (communicator.rank() != 0) send(communicator);
  for (int rank = 1; communicator.rank() == 0 && rank < communicator.size(); ++rank) receive(communicator, rank);
  comm::agree(communicator, failure_);
  return {.documents = comm::allReduceScalar(communicator, totals_.documents),
          .tokens = comm::allReduceScalar(communicator, totals_.tokens),
          .textBytes = comm::allReduceScalar(communicator, totals_.textBytes)};
}

void Part::finish(const DatasetDescription& description) {
  if (writer_) writer_->finish(description);
}

}  // namespace tandem::data::detail
