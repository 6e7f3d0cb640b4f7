#pragma once
// Where each parameter lies in one flat buffer, and which rank owns which part of it (ZeRO stage 1).
//
// The parameters are those of one rank of the tensor and pipeline axes, as it holds them (layout.h); the ranks here are
// its replicas.
//
// Gradients, weights and optimizer states of all parameters are flat buffers with the same layout. The buffer is cut
// into buckets, each a run of whole parameters whose gradients are complete at about the same moment of the backward
// pass; a bucket is reduce-scattered as soon as its last gradient is written, while the backward pass goes on. Inside a
// bucket, rank r owns the r-th piece; the pieces of all buckets together are the rank's shard, and only for them does
// it hold optimizer states.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/shape.h"
#include "common/sharding/layout.h"

namespace tandem::sharding {

struct FlatParameter {
  std::string name;
  base::Shape shape;        // as it is held here
  std::int64_t offset = 0;  // in elements, in the flat buffer; a multiple of 16, so that every parameter is aligned
  std::int64_t count = 0;
  std::int32_t bucket = 0;
  Part part = {};  // what is held here of the logical parameter
};

// A run of elements of one parameter that a rank owns.
struct OwnedRun {
  std::int64_t parameter = 0;  // index into parameters()
  std::int64_t begin = 0;      // first element, inside the parameter
  std::int64_t count = 0;
  std::int64_t flatOffset = 0;   // where it lies in the flat buffer
  std::int64_t shardOffset = 0;  // where it lies in the rank's shard
};

class FlatLayout {
 public:
  struct Named {
    std::string name;
    base::Shape shape;
    std::optional<Part> part = {};  // none: it is held whole
    std::int32_t group = 0;         // parameters of different groups share no bucket
  };
  enum class Ownership {
    anywhere,         // pieces of equal size, wherever they cut
    wholeParameters,  // no parameter is cut, as Muon needs; pieces as equal as that allows
  };

  // Parameters in the order of their use in the forward pass. Buckets are filled to at least bucketElements.
  FlatLayout(std::span<const Named> parameters, int ranks, Ownership ownership, std::int64_t bucketElements);

  const std::vector<FlatParameter>& parameters() const { return parameters_; }
  std::int64_t indexOf(const std::string& name) const;  // -1 when there is none
  std::int64_t count() const { return count_; }         // elements of the flat buffer, padding included
  int ranks() const { return ranks_; }

  int buckets() const { return static_cast<int>(bucketBegins_.size()) - 1; }
  std::int64_t bucketBegin(int bucket) const { return bucketBegins_[static_cast<std::size_t>(bucket)]; }
  std::int64_t bucketCount(int bucket) const { return bucketBegin(bucket + 1) - bucketBegin(bucket); }
  // Elements that each rank owns of a bucket, in the order of the ranks.
  std::span<const std::int64_t> pieceCounts(int bucket) const;
  // Where rank r's piece of a bucket begins, in the flat buffer and in its shard.
  std::int64_t pieceBegin(int bucket, int rank) const;
  std::int64_t pieceShardOffset(int bucket, int rank) const;

  std::int64_t shardCount(int rank) const;
  // What rank r owns, parameter by parameter, padding left out.
  std::vector<OwnedRun> ownedRuns(int rank) const;
  // The same without what other tensor ranks or pipeline stages hold too and speak for: over all ranks of a grid, every
  // element of every logical parameter once.
  std::vector<OwnedRun> countedRuns(int rank) const;

 private:
  void place(std::span<const Named> parameters, std::int64_t bucketElements);
  void cutAnywhere();
  void cutAtParameters();

  std::vector<FlatParameter> parameters_;
  std::vector<std::int64_t> bucketBegins_;
  std::vector<std::int64_t> pieceCounts_;  // [bucket][rank]
  std::int64_t count_ = 0;
  int ranks_ = 1;
};

}  // namespace tandem::sharding
