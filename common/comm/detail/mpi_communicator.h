#pragma once
// The communicator over MPI.
//
// Calls are cut into pieces, since MPI counts in int. All-reduces of 16-bit floats go through a float32 copy, so that a
// sum is rounded once. All-gathers, all-to-alls and reduce-scatters exchange directly between the ranks, which takes
// uneven counts and works in place.

#include <mpi.h>

#include <memory>

#include "common/comm/communicator.h"

namespace tandem::comm::detail {

// The communicator of all ranks. MPI must be initialised, and be finalised only after the result is gone.
std::unique_ptr<Communicator> makeMpiWorld();

// Throws Error of kind communication, with MPI's own text, unless the code is MPI_SUCCESS.
void checkMpi(int code, const char* call, std::source_location place = std::source_location::current());

// The longest piece of a call in bytes, a multiple of 8; a test lowers it.
std::int64_t pieceBytes();
void setPieceBytes(std::int64_t bytes);

// The longest message of an exchange in which ranks send to each other at the same time: as much as the library sends
// over TCP without asking (64 KiB with its header). A longer message is announced, the answer stands behind the data
// that goes the other way, and the two directions of a link take turns: half its rate.
std::int64_t segmentBytes();

}  // namespace tandem::comm::detail
