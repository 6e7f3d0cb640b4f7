// NCCL's symbols over MPI: one process per rank, buffers are the emulated device's memory. Calls follow the stream they
// are given; a group's sends and receives start together. MPI must have been started by the program. What is not here
// does not link; a type or reduction that is not here is refused. SIMT_NCCL_VERSION is the version that it tells.
#include <mpi.h>
#include <nccl.h>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>
#include "tests/simt/emulator/runtime.h"

struct ncclComm {
  MPI_Comm mpi;
  int rank, size;
};

namespace {
struct Id {
  int root, tag;
};
struct P2p {
  bool send;
  void* p;
  size_t bytes;
  int peer;
  ncclComm* c;
  cudaStream_t s;
};
thread_local int depth = 0;
thread_local std::vector<P2p> pending;
size_t width(ncclDataType_t t) {
  switch (t) {
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclBfloat16:
    case ncclFloat16:
      return 2;
    case ncclInt8:
    case ncclUint8:
      return 1;
    default:
      return 8;
  }
}
// Reductions gather all contributions and add them in float, in rank order: independent of MPI's tree.
template <class T, class Acc>
void reduce(T* out, const std::vector<char>& all, size_t n, int ranks, ncclRedOp_t op) {
  auto* in = reinterpret_cast<const T*>(all.data());
  for (size_t i = 0; i < n; i++) {
    Acc a = Acc(in[i]);
    for (int r = 1; r < ranks; r++) {
      Acc v = Acc(in[size_t(r) * n + i]);
      a = op == ncclMax ? std::max(a, v) : op == ncclMin ? std::min(a, v) : a + v;
    }
    if (op == ncclAvg) a = a / Acc(ranks);
    out[i] = T(a);
  }
}
ncclResult_t reduce_any(void* out, const std::vector<char>& all, size_t n, int ranks, ncclDataType_t t,
                        ncclRedOp_t op) {
  if (op != ncclSum && op != ncclMax && op != ncclMin && op != ncclAvg) return ncclInvalidArgument;
  switch (t) {
    case ncclFloat32:
      reduce<float, float>(static_cast<float*>(out), all, n, ranks, op);
      return ncclSuccess;
    case ncclBfloat16:
      reduce<__nv_bfloat16, float>(static_cast<__nv_bfloat16*>(out), all, n, ranks, op);
      return ncclSuccess;
    case ncclFloat64:
      reduce<double, double>(static_cast<double*>(out), all, n, ranks, op);
      return ncclSuccess;
    case ncclInt32:
      reduce<int, int>(static_cast<int*>(out), all, n, ranks, op);
      return ncclSuccess;
    case ncclInt64:
      reduce<int64_t, int64_t>(static_cast<int64_t*>(out), all, n, ranks, op);
      return ncclSuccess;
    default:
      return ncclInvalidArgument;
  }
}
template <class F>
ncclResult_t on_stream(cudaStream_t s, F f) {
  return simt::enqueue(
             s, [f] { return f() == ncclSuccess ? cudaSuccess : cudaErrorUnknown; }, true) == cudaSuccess
             ? ncclSuccess
             : ncclUnhandledCudaError;
}
bool device(const void* p, size_t n) { return n == 0 || simt::is_device(p, n); }
// All sends and receives of a group, started together. Called again until they are complete.
struct Messages {
  std::vector<P2p> ops;
  std::vector<MPI_Request> r = {};

  cudaError_t proceed() {
    if (r.empty()) start();
    for (;;) {
      int done = 0;
      MPI_Testall(int(r.size()), r.data(), &done, MPI_STATUSES_IGNORE);
      if (done) return cudaSuccess;
      if (!simt::let_others_go_on()) return cudaErrorNotReady;
    }
  }
  void start() {
    r.resize(ops.size());
    for (size_t i = 0; i < ops.size(); i++) {
      P2p& o = ops[i];
      o.send ? MPI_Isend(o.p, int(o.bytes), MPI_BYTE, o.peer, 7, o.c->mpi, &r[i])
             : MPI_Irecv(o.p, int(o.bytes), MPI_BYTE, o.peer, 7, o.c->mpi, &r[i]);
    }
  }
};
ncclResult_t exchange(std::vector<P2p> ops) {
  cudaStream_t s = ops[0].s;
  auto messages = std::make_shared<Messages>(Messages{std::move(ops)});
  return simt::enqueue(s, [messages] { return messages->proceed(); }) == cudaSuccess ? ncclSuccess
                                                                                     : ncclUnhandledCudaError;
}
ncclResult_t p2p(P2p o) {
  if (o.peer < 0 || o.peer >= o.c->size || !device(o.p, o.bytes)) return ncclInvalidArgument;
  if (depth) {
    pending.push_back(o);
    return ncclSuccess;
  }
  return exchange({o});
}
}  // namespace

extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int next = 100;
  Id mine{0, next++};
  MPI_Comm_rank(MPI_COMM_WORLD, &mine.root);
  memset(id, 0, sizeof *id);
  memcpy(id, &mine, sizeof mine);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* out, int n, ncclUniqueId uid, int rank) {
  Id id;
  memcpy(&id, &uid, sizeof id);
  int me;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  std::vector<int> world(static_cast<size_t>(n));
  int mine[2] = {rank, me};
  MPI_Request r;
  MPI_Isend(mine, 2, MPI_INT, id.root, id.tag, MPI_COMM_WORLD, &r);
  if (me == id.root) {  // whoever made the id collects the members
    for (int i = 0; i < n; i++) {
      int who[2];
      MPI_Recv(who, 2, MPI_INT, MPI_ANY_SOURCE, id.tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      world[size_t(who[0])] = who[1];
    }
    for (int w : std::vector<int>(world))
      if (w != me) MPI_Send(world.data(), n, MPI_INT, w, id.tag + 10000, MPI_COMM_WORLD);
  } else
    MPI_Recv(world.data(), n, MPI_INT, id.root, id.tag + 10000, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Wait(&r, MPI_STATUS_IGNORE);
  MPI_Group all, some;
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Group_incl(all, n, world.data(), &some);
  *out = new ncclComm{MPI_COMM_NULL, rank, n};
  MPI_Comm_create_group(MPI_COMM_WORLD, some, id.tag, &(*out)->mpi);
  MPI_Group_free(&all);
  MPI_Group_free(&some);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
  MPI_Comm_free(&c->mpi);
  delete c;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c) {
  delete c;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t c, int* n) {
  *n = c->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int* r) {
  *r = c->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* e) {
  *e = ncclSuccess;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t e) { return e == ncclSuccess ? "no error" : "NCCL error (emulated)"; }
ncclResult_t ncclGroupStart() {
  depth++;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth) return ncclSuccess;
  std::vector<P2p> ops;
  ops.swap(pending);
  if (ops.empty()) return ncclSuccess;
  for (auto& o : ops)
    if (o.s != ops[0].s) return ncclInvalidUsage;  // this sketch: one stream per group
  return exchange(ops);
}
ncclResult_t ncclSend(const void* p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
  return p2p({true, const_cast<void*>(p), n * width(t), peer, c, s});
}
ncclResult_t ncclRecv(void* p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
  return p2p({false, p, n * width(t), peer, c, s});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s) {
  size_t b = n * width(t);
  if (!device(out, b)) return ncclInvalidArgument;
  return on_stream(s, [=] {
    if (c->rank == root && in != out) memcpy(out, in, b);
    MPI_Bcast(out, int(b), MPI_BYTE, root, c->mpi);
    return ncclSuccess;
  });
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
  size_t b = n * width(t);
  if (!device(in, b) || !device(out, b * size_t(c->size))) return ncclInvalidArgument;
  return on_stream(s, [=] {
    std::vector<char> mine(static_cast<const char*>(in), static_cast<const char*>(in) + b);  // in may lie inside out
    MPI_Allgather(mine.data(), int(b), MPI_BYTE, out, int(b), MPI_BYTE, c->mpi);
    return ncclSuccess;
  });
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t s) {
  size_t b = n * width(t);
  if (!device(in, b) || !device(out, b)) return ncclInvalidArgument;
  return on_stream(s, [=] {
    std::vector<char> all(b * size_t(c->size));
    MPI_Allgather(in, int(b), MPI_BYTE, all.data(), int(b), MPI_BYTE, c->mpi);
    return reduce_any(out, all, n, c->size, t, op);
  });
}
ncclResult_t ncclReduce(const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c,
                        cudaStream_t s) {
  size_t b = n * width(t);
  if (root < 0 || root >= c->size || !device(in, b) || (c->rank == root && !device(out, b))) return ncclInvalidArgument;
  return on_stream(s, [=] {
    std::vector<char> all(c->rank == root ? b * size_t(c->size) : 0);
    MPI_Gather(in, int(b), MPI_BYTE, all.data(), int(b), MPI_BYTE, root, c->mpi);
    return c->rank == root ? reduce_any(out, all, n, c->size, t, op) : ncclSuccess;
  });
}
ncclResult_t ncclGetVersion(int* version) {
  const char* const told = getenv("SIMT_NCCL_VERSION");
  *version = told ? atoi(told) : NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                               cudaStream_t s) {
  size_t b = n * width(t);
  if (!device(in, b * size_t(c->size)) || !device(out, b)) return ncclInvalidArgument;
  return on_stream(s, [=] {
    std::vector<char> all(b * size_t(c->size));
    MPI_Alltoall(in, int(b), MPI_BYTE, all.data(), int(b), MPI_BYTE, c->mpi);
    return reduce_any(out, all, n, c->size, t, op);
  });
}
}
