// fake_cudart.cpp - the part of the CUDA runtime that tests need, linked instead of libcudart.
// Same symbols and semantics; host memory stands in for device memory.
#include <sys/mman.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>
#include "tests/simt/emulator/runtime.h"

struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<cudaError_t()>> work;
};
struct CUstream_st {
  CUgraph_st* recording = nullptr;
  std::deque<simt::Work> q;
  uint64_t done = 0, queued = 0;
  bool busy = false;  // runs its first work, which lets other streams go on meanwhile
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  uint64_t position = 0;
  bool recorded = false;
  std::shared_ptr<std::chrono::steady_clock::time_point> when;
};

namespace simt {
namespace {
std::recursive_mutex rt;
struct Block {
  size_t bytes, mapped;
  char* map;
  bool pinned;
};
std::map<const char*, Block> blocks;
std::vector<CUstream_st*> streams;
cudaError_t sticky = cudaSuccess, last = cudaSuccess;
size_t in_use = 0;
[[maybe_unused]] int guard_depth = 0;
bool env_is(const char* name, const char* v) {
  const char* s = getenv(name);
  return s && std::string_view(s) == v;
}
const bool lazy = env_is("SIMT_STREAMS", "lazy");
[[maybe_unused]] const bool host_guard = env_is("SIMT_HOST_GUARD", "1");
struct Model {
  int major, minor, sms;
  size_t smem_sm, smem_optin;
  const char* name;
};
Model model() {  // shared-memory sizes per architecture, from the CUDA programming guide
  const char* s = getenv("SIMT_ARCH");
  std::string_view a = s ? s : "121";
  if (a == "80") return {8, 0, 108, 164 * 1024, 163 * 1024, "emulated sm_80"};
  if (a == "90") return {9, 0, 132, 228 * 1024, 227 * 1024, "emulated sm_90"};
  return {12, 1, 48, 100 * 1024, 99 * 1024, "emulated sm_121"};
}
cudaError_t note(cudaError_t e) {
  if (e != cudaSuccess) last = e;
  if (e == cudaErrorLaunchFailure) sticky = e;  // as on the GPU: the context is lost
  return e;
}
#if !defined(__SANITIZE_ADDRESS__)
void protect(int how) {
  for (auto& [p, b] : blocks)
    if (!b.pinned) mprotect(b.map + 4096, b.mapped - 8192, how);
}
#endif
struct DeviceAccess {  // device memory is reachable only while "the device" runs, if SIMT_HOST_GUARD=1
#if defined(__SANITIZE_ADDRESS__)
  DeviceAccess() {}
#else
  DeviceAccess() {
    if (host_guard && guard_depth++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  ~DeviceAccess() {
    if (host_guard && --guard_depth == 0) protect(PROT_NONE);
  }
#endif
};
// cudaErrorNotReady: it waits for a stream whose work has let this one go on, or for another process beside such work.
cudaError_t run_one(CUstream_st* s) {
  if (s->busy) return cudaErrorNotReady;
  s->busy = true;
  cudaError_t e = sticky;
  if (e == cudaSuccess) {
    DeviceAccess a;
    e = s->q.front().run();
  }
  s->busy = false;
  if (e == cudaErrorNotReady) return e;
  s->q.pop_front();
  s->done++;
  return note(e);
}
cudaError_t drain(CUstream_st* s, uint64_t upto = ~0ull) {
  cudaError_t e = cudaSuccess;
  if (s->q.empty() || s->done >= upto) return e;
  DeviceAccess a;  // once for all that waits: opening takes longer than most work
  while (!s->q.empty() && s->done < upto) {
    cudaError_t r = run_one(s);
    if (r == cudaErrorNotReady) return r;
    if (e == cudaSuccess) e = r;
  }
  return e;
}
cudaError_t drain_all() {
  cudaError_t e = sticky;
  for (auto* s : std::vector<CUstream_st*>(streams)) {
    cudaError_t r = drain(s);
    if (e == cudaSuccess) e = r;
  }
  return e;
}
bool is_default(cudaStream_t s) { return !s || s == cudaStreamLegacy || s == cudaStreamPerThread; }
[[maybe_unused]] cudaError_t check_tail(const char* p, const Block& b) {
  for (size_t i = b.bytes; i < (b.bytes + 255) / 256 * 256; i++)
    if (static_cast<unsigned char>(p[i]) != 0xA5) {
      set_error("write past the end of a device allocation of " + std::to_string(b.bytes) + " bytes");
      fprintf(stderr, "simt: %s\n", last_error().c_str());
      return note(cudaErrorIllegalAddress);
    }
  return cudaSuccess;
}
// What would wait, or change memory, must not happen between the begin and the end of a recording.
bool is_recording() {
  return std::any_of(streams.begin(), streams.end(), [](const CUstream_st* s) { return s->recording != nullptr; });
}
size_t memory_bytes() {  // SIMT_MEMORY: of the device
  const char* s = getenv("SIMT_MEMORY");
  return s ? strtoull(s, nullptr, 10) : size_t(8) << 30;
}
cudaError_t allocate(void** out, size_t n, bool pinned) {
  std::lock_guard l(rt);
  *out = nullptr;
  if (!n) return cudaSuccess;
  if (is_recording()) return note(cudaErrorStreamCaptureUnsupported);
  if (!pinned && in_use + n > memory_bytes()) return note(cudaErrorMemoryAllocation);
  char* p;
  Block b{n, 0, nullptr, pinned};
#if defined(__SANITIZE_ADDRESS__)
  void* v = nullptr;
  if (posix_memalign(&v, 256, n)) return note(cudaErrorMemoryAllocation);
  p = static_cast<char*>(v);
  memset(p, 0xFF, n);
#else
  size_t rounded = (n + 255) / 256 * 256, pages = (rounded + 4095) / 4096 * 4096;
  b.mapped = pages + 8192;
  b.map = static_cast<char*>(
      mmap(nullptr, b.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (b.map == MAP_FAILED) return note(cudaErrorMemoryAllocation);
  mprotect(b.map, 4096, PROT_NONE);
  mprotect(b.map + 4096 + pages, 4096, PROT_NONE);
  p = b.map + 4096 + pages - rounded;  // ends at the guard page
  memset(p, 0xFF, n);                  // NaN until written
  memset(p + n, 0xA5, rounded - n);
  if (host_guard && !pinned && guard_depth == 0) mprotect(b.map + 4096, pages, PROT_NONE);
#endif
  blocks[p] = b;
  if (!pinned) in_use += n;
  *out = p;
  return cudaSuccess;
}
cudaError_t release(void* v) {
  std::lock_guard l(rt);
  if (!v) return cudaSuccess;
  if (is_recording()) return note(cudaErrorStreamCaptureUnsupported);
  DeviceAccess a;
  cudaError_t e = drain_all();
  auto it = blocks.find(static_cast<char*>(v));
  if (it == blocks.end()) return note(cudaErrorInvalidValue);
  if (!it->second.pinned) in_use -= it->second.bytes;
#if defined(__SANITIZE_ADDRESS__)
  free(v);
#else
  if (auto t = check_tail(it->first, it->second); t != cudaSuccess) e = t;
  munmap(it->second.map, it->second.mapped);
#endif
  blocks.erase(it);
  return e;
}
const Block* find(const void* v, size_t n) {
  auto* p = static_cast<const char*>(v);
  auto it = blocks.upper_bound(p);
  if (it == blocks.begin()) return nullptr;
  --it;
  return p + n <= it->first + it->second.bytes ? &it->second : nullptr;
}
cudaError_t copy(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t st) {
  std::lock_guard l(rt);
  if (!n) return cudaSuccess;
  const Block *bd = find(d, n), *bs = find(s, n);
  bool dd = bd && !bd->pinned, ds = bs && !bs->pinned;
  bool ok = k == cudaMemcpyDefault || (k == cudaMemcpyHostToDevice && dd && !ds) ||
            (k == cudaMemcpyDeviceToHost && ds && !dd) || (k == cudaMemcpyDeviceToDevice && dd && ds) ||
            (k == cudaMemcpyHostToHost && !dd && !ds);
  if (!ok) {
    set_error("memory copy of " + std::to_string(n) +
              " bytes: direction does not match the pointers, or it leaves its allocation");
    fprintf(stderr, "simt: %s\n", last_error().c_str());
    return note(cudaErrorInvalidValue);
  }
  if (is_recording() && (!bd || !bs)) return note(cudaErrorStreamCaptureUnsupported);
  if (!dd && !bd) {  // pageable destination: the call waits
    DeviceAccess a;
    cudaError_t e = is_default(st) ? drain_all() : drain(st);
    memcpy(d, s, n);
    return e;
  }
  if (!ds && !bs) {  // pageable source: staged before the call returns
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(s), static_cast<const char*>(s) + n);
    return enqueue(st, [=] {
      memcpy(d, staged->data(), n);
      return cudaSuccess;
    });
  }
  return enqueue(st, [=] {
    memmove(d, s, n);
    return cudaSuccess;
  });
}
}  // namespace

bool let_others_go_on() {
  static bool under_way = false;
  std::lock_guard l(rt);
  if (under_way) return false;
  under_way = true;
  for (auto* s : std::vector<CUstream_st*>(streams))
    if (!s->busy && !s->q.empty() && !s->q.front().meets) run_one(s);
  under_way = false;
  return true;
}
cudaError_t enqueue(cudaStream_t s, std::function<cudaError_t()> op, bool meets) {
  std::lock_guard l(rt);
  if (sticky != cudaSuccess) return sticky;
  if (!is_default(s) && s->recording) {
    s->recording->work.push_back(std::move(op));
    return cudaSuccess;
  }
  if (is_default(s)) {
    DeviceAccess a;
    cudaError_t e = drain_all();
    if (e != cudaSuccess) return e;
    return note(op());
  }
  s->q.push_back({std::move(op), meets});
  s->queued++;
  return lazy ? cudaSuccess : drain(s);
}
bool is_device(const void* p, size_t n) {
  std::lock_guard l(rt);
  return find(p, n) != nullptr;
}
cudaError_t submit(const tandem::kernels::cuda::Grid& g, std::string_view kernel, size_t param_bytes,
                   std::function<void()> thread) {
  return enqueue(g.stream, [g, kernel, param_bytes, t = std::move(thread)] {
    const Pace pace(Kind::kernel);
    return run_grid(g, kernel, param_bytes, t, model().smem_optin);
  });
}
}  // namespace simt

using namespace simt;
#define API extern "C" cudaError_t CUDARTAPI
API cudaMalloc(void** p, size_t n) { return allocate(p, n, false); }
API cudaFree(void* p) { return release(p); }
API cudaMallocHost(void** p, size_t n) { return allocate(p, n, true); }
API cudaHostAlloc(void** p, size_t n, unsigned) { return allocate(p, n, true); }
API cudaFreeHost(void* p) { return release(p); }
API cudaMallocAsync(void** p, size_t n, cudaStream_t) { return allocate(p, n, false); }
API cudaFreeAsync(void* p, cudaStream_t) { return release(p); }
API cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) { return copy(d, s, n, k, nullptr); }
API cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t st) {
  return copy(d, s, n, k, st);
}
API cudaMemset(void* p, int v, size_t n) { return cudaMemsetAsync(p, v, n, nullptr); }
API cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t s) {
  if (!is_device(p, n)) return note(cudaErrorInvalidValue);
  return enqueue(s, [=] {
    memset(p, v, n);
    return cudaSuccess;
  });
}
API cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  std::lock_guard l(rt);
  streams.push_back(*s = new CUstream_st);
  return cudaSuccess;
}
API cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, 0); }
API cudaStreamCreateWithPriority(cudaStream_t* s, unsigned f, int) { return cudaStreamCreateWithFlags(s, f); }
API cudaStreamSynchronize(cudaStream_t s) {
  std::lock_guard l(rt);
  if (is_recording()) return note(cudaErrorStreamCaptureUnsupported);
  if (is_default(s)) return drain_all();
  cudaError_t e = drain(s);
  return sticky != cudaSuccess ? sticky : e;
}
API cudaStreamDestroy(cudaStream_t s) {
  std::lock_guard l(rt);
  cudaError_t e = drain(s);
  std::erase(streams, s);
  delete s;
  return e;
}
API cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  std::lock_guard l(rt);
  if (is_default(s) || s->recording) return note(cudaErrorIllegalState);
  s->recording = new CUgraph_st;
  return cudaSuccess;
}
API cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  std::lock_guard l(rt);
  *graph = is_default(s) ? nullptr : std::exchange(s->recording, nullptr);
  return *graph ? cudaSuccess : note(cudaErrorIllegalState);
}
API cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
API cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t s) {
  return simt::enqueue(s, [work = executable->work] {
    for (const auto& each : work)
      if (cudaError_t e = each(); e != cudaSuccess) return e;
    return cudaSuccess;
  });
}
API cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
API cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
API cudaStreamQuery(cudaStream_t s) {  // each poll lets one operation finish
  std::lock_guard l(rt);
  if (is_default(s) || s->q.empty()) return sticky;
  run_one(s);
  return s->q.empty() ? sticky : cudaErrorNotReady;
}
API cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (!e->recorded || is_default(e->stream)) return cudaSuccess;
  return enqueue(s, [st = e->stream, at = e->position] { return drain(st, at); });
}
API cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = new CUevent_st;
  return cudaSuccess;
}
API cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
API cudaEventDestroy(cudaEvent_t e) {
  delete e;
  return cudaSuccess;
}
API cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  std::lock_guard l(rt);
  e->recorded = true;
  e->stream = s;
  e->when = std::make_shared<std::chrono::steady_clock::time_point>();
  cudaError_t r = enqueue(s, [w = e->when] {
    *w = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
  e->position = is_default(s) ? 0 : s->queued;
  return r;
}
API cudaEventSynchronize(cudaEvent_t e) {
  std::lock_guard l(rt);
  return !e->recorded || is_default(e->stream) ? sticky : drain(e->stream, e->position);
}
API cudaEventQuery(cudaEvent_t e) {
  std::lock_guard l(rt);
  if (!e->recorded || is_default(e->stream) || e->stream->done >= e->position) return sticky;
  run_one(e->stream);
  return e->stream->done >= e->position ? sticky : cudaErrorNotReady;
}
API cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  if (!a->recorded || !b->recorded) return note(cudaErrorInvalidResourceHandle);
  *ms = std::chrono::duration<float, std::milli>(*b->when - *a->when).count();
  return cudaSuccess;
}
API cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* u) {
  return enqueue(s, [=] {
    f(u);
    return cudaSuccess;
  });
}
API cudaDeviceSynchronize() {
  std::lock_guard l(rt);
  cudaError_t e = drain_all();
#if !defined(__SANITIZE_ADDRESS__)
  DeviceAccess a;
  for (auto& [p, b] : blocks)
    if (e == cudaSuccess) e = check_tail(p, b);
#endif
  return e;
}
API cudaDeviceReset() {
  std::lock_guard l(rt);
  for (auto* s : streams) s->q.clear();
  sticky = last = cudaSuccess;
  return cudaSuccess;
}
API cudaGetDeviceCount(int* n) {  // SIMT_DRIVER: none, old, no-device
  *n = 0;
  if (env_is("SIMT_DRIVER", "none") || env_is("SIMT_DRIVER", "old")) return note(cudaErrorInsufficientDriver);
  if (env_is("SIMT_DRIVER", "no-device")) return note(cudaErrorNoDevice);
  *n = 1;
  return cudaSuccess;
}
API cudaDriverGetVersion(int* version) {
  *version = env_is("SIMT_DRIVER", "none") ? 0 : env_is("SIMT_DRIVER", "old") ? 12040 : CUDART_VERSION;
  return cudaSuccess;
}
API cudaGetDevice(int* d) {
  *d = 0;
  return cudaSuccess;
}
API cudaSetDevice(int d) { return d == 0 ? cudaSuccess : note(cudaErrorInvalidDevice); }
API cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  Model m = model();
  *p = cudaDeviceProp{};
  snprintf(p->name, sizeof p->name, "%s", m.name);
  p->major = m.major;
  p->minor = m.minor;
  p->multiProcessorCount = m.sms;
  p->warpSize = 32;
  p->totalGlobalMem = memory_bytes();
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerBlock = 48 * 1024;
  p->sharedMemPerBlockOptin = m.smem_optin;
  p->sharedMemPerMultiprocessor = m.smem_sm;
  p->integrated = env_is("SIMT_INTEGRATED", "1") ? 1 : 0;
  if (env_is("SIMT_DEVICES", "own")) {  // each process has one of its own; otherwise all share one
    const pid_t process = getpid();
    memcpy(p->uuid.bytes, &process, sizeof process);
  }
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  return cudaSuccess;
}
API cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, d);
  switch (a) {
    case cudaDevAttrMultiProcessorCount:
      *v = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *v = int(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *v = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *v = p.minor;
      break;
    default:
      return note(cudaErrorNotSupported);
  }
  return cudaSuccess;
}
API cudaMemGetInfo(size_t* f, size_t* t) {
  *t = memory_bytes();
  *f = *t - in_use;
  return cudaSuccess;
}
API cudaGetLastError() {
  std::lock_guard l(rt);
  cudaError_t e = last;
  last = sticky;
  return e;
}
API cudaPeekAtLastError() { return last; }
extern "C" const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaSuccess ? "cudaSuccess" : "cudaError (emulated)";
}
extern "C" const char* cudaGetErrorString(
    cudaError_t e) {  // the emulator's own words reach the program's own error path
  static thread_local std::string s;
  s = e == cudaSuccess ? "no error"
      : e == cudaErrorNoDevice
          ? "no CUDA-capable device is detected"
          : "CUDA error " + std::to_string(int(e)) + (last_error().empty() ? "" : ": " + last_error());
  return s.c_str();
}
