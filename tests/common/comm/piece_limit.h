#pragma once
// Every collective is tested with calls in one piece, and cut into many: that is how more than 2^31 elements travel.

#include <gtest/gtest.h>

#include "common/comm/detail/mpi_communicator.h"

namespace tandem::test {

class PieceLimit {
 public:
  explicit PieceLimit(std::int64_t bytes) { comm::detail::setPieceBytes(bytes); }
  ~PieceLimit() { comm::detail::setPieceBytes(before_); }
  PieceLimit(const PieceLimit&) = delete;
  PieceLimit& operator=(const PieceLimit&) = delete;

 private:
  std::int64_t before_ = comm::detail::pieceBytes();
};

// Parameter: the piece limit in bytes.
class WithPieces : public testing::TestWithParam<std::int64_t> {
  PieceLimit limit_{GetParam()};
};

inline const auto pieceLimits = testing::Values(std::int64_t{256} << 20, std::int64_t{24});
inline std::string pieceName(const testing::TestParamInfo<std::int64_t>& info) {
  return info.param < 1000 ? "inManyPieces" : "inOnePiece";
}

}  // namespace tandem::test
