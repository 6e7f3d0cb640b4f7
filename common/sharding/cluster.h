#pragma once
// What a plan has to know of the machines: read from a description (data/clusters), or measured where a job runs.
//
// A description is a flat list of entries with the unit in the name:
//   nodes, devices-per-node
//   memory-gib, reserve-gib          of a device, and what is left free of it: contexts, libraries, the system
//   matrix-tflops-fp32, -bf16        what products of large matrices reach on one device, not what a data sheet says
//   memory-gb-per-second             of a device
//   launch-microseconds              to start one operator
//   inside-gb-per-second, inside-latency-microseconds     of one device to others of its node, each way
//   between-gb-per-second, between-latency-microseconds   of one node, all its devices together, each way
//   overlap                          the part of an exchange that goes on beside computing, 0 to 1; 1 when left out
// A GB is 10^9 bytes, a GiB 2^30.

#include <cstdint>
#include <string>

#include "common/base/dtype.h"

namespace tandem::sharding {

struct Link {
  double bytesPerSecond = 0;
  double latencySeconds = 0;
};

struct Cluster {
  std::string name;
  int nodes = 1;
  int devicesPerNode = 1;
  std::int64_t memoryBytes = 0;
  std::int64_t reserveBytes = 0;
  double matrixRateF32 = 0;  // floating-point operations per second
  double matrixRateBf16 = 0;
  double memoryRate = 0;  // bytes per second
  double launchSeconds = 0;
  Link inside;   // of a device; unset where a node has one
  Link between;  // of a node; unset where there is one
  double overlap = 1;
  // How many times as fast a rank computes while the others of its node wait: more than 1 where ranks share processors.
  // The rates above are those of a rank while all compute. Measured, never described.
  double sharing = 1;
  // Whether ranks exchange through the host's memory, where sums need room. Measured too.
  bool exchangesOnHost = false;

  int devices() const { return nodes * devicesPerNode; }
  std::int64_t usableBytes() const { return memoryBytes - reserveBytes; }
  double matrixRate(base::DType storage) const { return storage == base::DType::f32 ? matrixRateF32 : matrixRateBf16; }
};

// Throws Error of kind usage, naming `source`, the line and what is allowed: an entry is unknown, missing, no number,
// out of range, or says something of links that the cluster does not have.
Cluster parseCluster(const std::string& text, const std::string& source);

// Reads a file; kind file when that fails. The cluster's name is the file's, without its ending.
Cluster readCluster(const std::string& path);

// The link that `members` ranks of a grid exchange over which lie `stride` ranks apart, the groups of all ranks of a
// node exchanging at once: its rate is a rank's share.
Link linkOfGroup(const Cluster& cluster, int members, int stride);

}  // namespace tandem::sharding
