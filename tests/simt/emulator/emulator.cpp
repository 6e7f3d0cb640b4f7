// simt.cpp - runs the threads of one block as fibers on one OS thread; blocks spread over OS threads.
// Never compile this file with -fsanitize=thread: pass -DSIMT_TSAN=1 instead (see README).
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#include "kernels/cuda/launch.h"
#include "tests/simt/emulator/runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ASAN(x) x
#else
#define ASAN(x)
#endif
#if SIMT_TSAN
#include <sanitizer/tsan_interface.h>
#define TSAN(x) x
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
// Shared memory is reused: without this TSan reports one race per address and process.
extern "C" const char* __tsan_default_options() { return "suppress_equal_addresses=0"; }
struct Quiet {  // the emulator's own malloc and memset calls on a lane's behalf are not the kernel's
  Quiet() {
    AnnotateIgnoreReadsBegin("", 0);
    AnnotateIgnoreWritesBegin("", 0);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd("", 0);
    AnnotateIgnoreReadsEnd("", 0);
  }
};
#else
struct Quiet {};
#endif
#if SIMT_TSAN
// Creating a TSan fiber costs about a millisecond, so they are kept, in two sets used by turns: blocks
// of one set are ordered after each other, neighbouring blocks are not, and their races are seen.
constexpr bool share_stacks = false;  // TSan must not see two lanes use one stack
constexpr size_t stack_bytes = 64 * 1024;
#else
constexpr bool share_stacks = true;
constexpr size_t stack_bytes = 256 * 1024;
#define TSAN(x)
#endif

namespace bc = boost::context::detail;
const int warpSize = 32;  // declared by device_launch_parameters.h
namespace simt {
constinit thread_local Lane* self = nullptr;
constinit thread_local Place place{};

namespace {
constexpr size_t arena_bytes = 512 * 1024, gap = 256;
struct Fiber {
  bc::fcontext_t ctx = nullptr;
  void* lo = nullptr;
  size_t size = 0;
  void* fake = nullptr;
};
struct Job {
  std::string_view kernel;
  const std::function<void()>* thread;
  dim3 grid, block;
  size_t smem, smem_limit;
  std::source_location where;
  uint64_t seed, blocks;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex m;
  std::string error;
  char tsan_begin = 0, tsan_done = 0;
};
struct Config {
  uint64_t seed = 0;
  int threads = 1;
  bool late = true, strict_exit = true;
  Config() {
    if (auto* s = getenv("SIMT_SEED")) seed = strtoull(s, nullptr, 10);
    threads = int(std::thread::hardware_concurrency());
    if (auto* s = getenv("SIMT_THREADS")) threads = atoi(s);
    if (auto* s = getenv("SIMT_ASYNC")) late = std::string_view(s) != "early";
    if (auto* s = getenv("SIMT_EXIT")) strict_exit = std::string_view(s) != "lenient";
  }
};
Config config;
std::mutex stats_mutex;
Stats total{};
std::string error_text;
std::mutex error_mutex;

struct Set {  // what the TSan build keeps per (set, lane)
  std::vector<Fiber*> fiber;
  std::vector<void*> tsan;
  std::vector<std::unique_ptr<Copies>> copies;
  unsigned char* arena = nullptr;
  char sync[2] = {};  // block u of the set leaves sync[u % 2] for block u + 1
  unsigned use = 0;
};
struct Worker {
  Fiber main;
  [[maybe_unused]] Set sets[2];
  [[maybe_unused]] unsigned set_at = 0;
  std::vector<std::unique_ptr<Fiber>> all;
  std::vector<Fiber*> idle;
  Fiber* running = nullptr;
  std::vector<Lane> lanes;
  std::vector<std::unique_ptr<Copies>> copy_pool;
  unsigned runnable = 0, ready[32]{}, fresh[32]{};  // warps with work; lanes to resume; lanes not begun
  unsigned arrived[32]{}, gone[32]{};               // lanes inside a warp collective; lanes that have exited
  unsigned threads = 0, warp_at = 0, live = 0, at_barrier = 0, exited = 0;
  Lane* start = nullptr;  // lane handed to an idle fiber
  Lane* first_at_barrier = nullptr;
  int vote_or = 0, vote_and = 1, vote_count = 0, voted[3]{};
  unsigned phase = 0;
  unsigned char* arena = nullptr;
  size_t used = 0, static_used = 0;
  std::vector<std::pair<size_t, size_t>> gaps;
  uint64_t rng = 0;
  Job* job = nullptr;
  bool failed = false;
  Stats st{};
  void* tsan_main = nullptr;
};
constinit thread_local Worker* w_tls = nullptr;
Worker& W() { return *w_tls; }
Worker& worker_here() {
  static std::mutex m;
  static auto* all = new std::vector<Worker*>;  // one per OS thread that ever ran a block; kept to the end
  if (!w_tls) {
    std::lock_guard g(m);
    all->push_back(w_tls = new Worker);
  }
  return *w_tls;
}
uint64_t next_random(Worker& w) {
  w.rng ^= w.rng << 13;
  w.rng ^= w.rng >> 7;
  w.rng ^= w.rng << 17;
  return w.rng;
}
const char* op_name(Op o) {
  static const char* n[] = {"running", "__syncthreads", "__syncwarp", "shuffle",
                            "vote",    "warp reduce",   "ldmatrix",   "mma"};
  return n[int(o)];
}
bool same_site(const Loc& a, const Loc& b) { return a.line() == b.line() && a.column() == b.column(); }
std::string at(const Loc& l) {
  std::string f = l.file_name();
  if (auto p = f.rfind('/'); p != f.npos) f = f.substr(p + 1);
  return f + ":" + std::to_string(l.line());
}
std::string who(const Lane& t) {
  char b[160];
  snprintf(b, sizeof b, "block (%u,%u,%u) thread (%u,%u,%u)", place.block.x, place.block.y, place.block.z, t.tid.x,
           t.tid.y, t.tid.z);
  return b;
}

// ---- switching ------------------------------------------------------------------------------
void arrived(Worker& w, bc::transfer_t t) {
  auto* from = static_cast<Fiber*>(t.data);
  from->ctx = t.fctx;
#if defined(__SANITIZE_ADDRESS__)
  const void* lo;
  size_t n;
  __sanitizer_finish_switch_fiber(w.running->fake, &lo, &n);
  from->lo = const_cast<void*>(lo);
  from->size = n;
#endif
  (void)w;
}
void jump(Worker& w, Fiber* to) {
  Fiber* from = w.running;
  w.running = to;
  w.st.switches++;
  ASAN(__sanitizer_start_switch_fiber(&from->fake, to->lo, to->size));
  bc::transfer_t t = bc::jump_fcontext(to->ctx, from);
  arrived(w, t);
}
void fiber_main(bc::transfer_t);
Fiber* idle_fiber(Worker& w, [[maybe_unused]] const Lane& lane) {
  TSAN(if (Fiber* f = w.sets[w.set_at].fiber[lane.linear]) return f;)
  if (w.idle.empty()) {
    [[maybe_unused]] Quiet quiet;
    auto f = std::make_unique<Fiber>();
    auto* p = static_cast<char*>(
        mmap(nullptr, stack_bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED) {
      perror("fiber stack");
      abort();
    }
    mprotect(p, 4096, PROT_NONE);
    f->lo = p + 4096;
    f->size = stack_bytes;
    size_t colour = w.all.size() * 320 % 8192;  // keeps the hot lines of the stacks out of each other's cache sets
    f->ctx = bc::make_fcontext(p + 4096 + stack_bytes - colour, stack_bytes - colour, fiber_main);
    w.idle.push_back(f.get());
    w.all.push_back(std::move(f));
  }
  Fiber* f = w.idle.back();
  w.idle.pop_back();
  TSAN(w.sets[w.set_at].fiber[lane.linear] = f;)
  return f;
}
void set_ready(Worker& w, Lane& t) {
  t.op = Op::none;
  w.ready[t.warp] |= 1u << t.lane;
  w.runnable |= 1u << t.warp;
}

Lane* pick(Worker& w) {  // which lane runs next; this is the whole scheduling policy
  if (!w.runnable) return nullptr;
  unsigned wp = w.warp_at;
  uint64_t seed = w.job->seed;
  if (seed > 1 && (next_random(w) & 3) == 0) wp = unsigned(next_random(w) >> 8) & 31;
  if (!(w.runnable >> wp & 1)) {
    if (seed == 1) {
      unsigned below = w.runnable & ((wp ? 1u << wp : 0u) - (wp ? 1u : 0u));
      wp = 31u - unsigned(std::countl_zero(below ? below : w.runnable));
    } else {
      unsigned above = w.runnable & ~((2u << wp) - 1);
      wp = unsigned(std::countr_zero(above ? above : w.runnable));
    }
  }
  w.warp_at = wp;
  unsigned m = w.ready[wp] | w.fresh[wp], bit;
  if (seed == 0)
    bit = unsigned(std::countr_zero(m));
  else if (seed == 1)
    bit = 31u - unsigned(std::countl_zero(m));
  else {
    int r = int(next_random(w) >> 16) & 31;
    bit = (unsigned(std::countr_zero(std::rotr(m, r))) + unsigned(r)) & 31;
  }
  w.ready[wp] &= ~(1u << bit);
  w.fresh[wp] &= ~(1u << bit);
  if (!(w.ready[wp] | w.fresh[wp])) w.runnable &= ~(1u << wp);
  return &w.lanes[wp * 32 + bit];
}
// what TSan sees of a barrier; inside the arena, of which each set has its own
[[maybe_unused]] void* bar_sync(Worker& w, unsigned which) { return w.arena + 8 * which; }
void become(Lane* t) {
  self = t;
  TSAN(__tsan_switch_to_fiber(t->tsan, __tsan_switch_to_fiber_no_sync));
}
void open_barrier(Worker& w, Lane* last) {
  w.st.barriers++;
  w.phase++;
  w.at_barrier = 0;
  w.voted[0] = w.vote_or;
  w.voted[1] = w.vote_and;
  w.voted[2] = w.vote_count;
  w.vote_or = 0;
  w.vote_and = 1;
  w.vote_count = 0;
  for (auto& t : w.lanes)
    if (t.op == Op::barrier && &t != last) set_ready(w, t);
  if (last) last->op = Op::none;
}
struct Abort {};  // unwinds the failing lane only
[[noreturn]] void abandon(Worker& w, const std::string& what) {
  {
    [[maybe_unused]] Quiet quiet;
    std::lock_guard g(w.job->m);
    if (!w.job->failed.exchange(true)) w.job->error = what;
  }
  w.failed = true;
  TSAN(__tsan_release(&w.job->tsan_done));
  throw Abort{};
}
void leave(Worker& w) {  // after an error: back to run_block, leaving every other lane where it is
  TSAN(__tsan_switch_to_fiber(w.tsan_main, __tsan_switch_to_fiber_no_sync));
  jump(w, &w.main);
}
std::string stuck(Worker& w) {
  std::string s = "divergence: no thread can continue.";
  int shown = 0;
  unsigned gone = 0;
  for (auto& t : w.lanes)
    if (t.done) gone++;
  const Lane* last = nullptr;
  for (auto& t : w.lanes)
    if (!t.done && t.op != Op::none) {
      if (last && last->op == t.op && same_site(last->loc, t.loc) && last->mask == t.mask &&
          last->loc.file_name() == t.loc.file_name())
        continue;
      if (shown++ < 6) {
        char m[40];
        snprintf(m, sizeof m, " mask %08x", t.mask);
        s += "\n    " + who(t) + " waits at " + op_name(t.op) + " " + at(t.loc) + (t.op == Op::barrier ? "" : m);
      }
      last = &t;
    }
  for (auto& t : w.lanes)
    if (t.done) {
      s += "\n    " + who(t) + " and " + std::to_string(gone - 1) + " others have exited";
      break;
    }
  return s;
}
void block_on(Worker& w) {  // the current lane waits; run something else
  Lane* me = self;
  Lane* n = pick(w);
  if (!n) abandon(w, stuck(w));
  if (n == me) return;
  me->fiber = w.running;
  if (n->fiber) {
    jump(w, static_cast<Fiber*>(n->fiber));
  } else {
    w.start = n;
    jump(w, idle_fiber(w, *n));
  }
  become(me);
}
void retire(Worker& w, Lane& l) {
  l.done = true;
  w.gone[l.warp] |= 1u << l.lane;
  TSAN(__tsan_release(&w.job->tsan_done); __tsan_release(&w.sets[w.set_at].sync[w.sets[w.set_at].use % 2]));
  w.live--;
  w.exited++;
  if (w.at_barrier && config.strict_exit)
    abandon(w, who(l) + " exited while " + who(*w.first_at_barrier) + " waits at __syncthreads " +
                   at(w.first_at_barrier->loc));
  if (w.at_barrier && w.at_barrier == w.live) open_barrier(w, nullptr);  // lenient: exited threads count as arrived
}
void fiber_main(bc::transfer_t t) {
  Worker& w = W();
  arrived(w, t);
  for (;;) {
    Lane* l = w.start;
    for (;;) {  // run fresh lanes one after another on this fiber for as long as none blocks
      become(l);
      TSAN(__tsan_acquire(&w.job->tsan_begin); __tsan_acquire(&w.sets[w.set_at].sync[(w.sets[w.set_at].use + 1) % 2]);)
      Lane* n = nullptr;
      try {
        (*w.job->thread)();
        l = self;
        retire(w, *l);
        n = pick(w);
        if (!n && w.live) abandon(w, stuck(w));
      } catch (const Abort&) {
        leave(w);
      }
      if (n && !n->fiber && share_stacks) {
        l = n;
        continue;
      }
      if (share_stacks) w.idle.push_back(w.running);
      Fiber* to = !n ? &w.main : n->fiber ? static_cast<Fiber*>(n->fiber) : idle_fiber(w, *n);
      if (n && !n->fiber) w.start = n;
      TSAN(if (!n) __tsan_switch_to_fiber(w.tsan_main, __tsan_switch_to_fiber_no_sync));
      jump(w, to);
      break;
    }
  }
}
void run_block(Worker& w, Job& j, uint64_t index) {
  static std::atomic<uint64_t> epochs{1};
  const unsigned n = j.block.x * j.block.y * j.block.z;
  place = {{unsigned(index % j.grid.x), unsigned(index / j.grid.x % j.grid.y), unsigned(index / j.grid.x / j.grid.y)},
           j.block,
           j.grid,
           epochs++};
  w.job = &j;
  w.failed = false;
  w.rng = (j.seed * 0x9E3779B97F4A7C15ull) ^ (index + 1) * 0xD1B54A32D192ED03ull;
  if (!w.rng) w.rng = 1;
    // shared memory: guard, dynamic part, guard, statics each followed by a guard
#if SIMT_TSAN
  w.set_at ^= 1;
  Set& set = w.sets[w.set_at];
  set.use++;
  w.arena = set.arena;
  w.copy_pool.swap(set.copies);
  if (set.fiber.size() < n) set.fiber.resize(n);
  while (set.tsan.size() < n) set.tsan.push_back(__tsan_create_fiber(0));
#endif
  if (!w.arena) {
    w.arena = static_cast<unsigned char*>(
        mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    ASAN(__asan_poison_memory_region(w.arena, arena_bytes));
  }
  w.gaps.clear();
  w.static_used = 0;
  auto guard = [&](size_t a, size_t b) {
    w.gaps.push_back({a, b});
    ASAN(return;)
    memset(w.arena + a, 0xA5, b - a);
  };
  [[maybe_unused]] Quiet quiet;
  guard(1024 - gap, 1024);
  ASAN(__asan_unpoison_memory_region(w.arena + 1024, j.smem));
  memset(w.arena + 1024, 0xFF, j.smem);  // NaN in every float format, -1 in every integer
  w.used = 1024 + j.smem;
  guard(w.used, w.used + gap);
  w.used += gap;

  w.lanes.assign((n + 31) / 32 * 32, Lane{});
  for (auto& c : w.copy_pool) *c = Copies{};
  w.runnable = 0;
  for (unsigned i = 0; i < n; i++) {
    Lane& t = w.lanes[i];
    t.tid = {i % j.block.x, i / j.block.x % j.block.y, i / j.block.x / j.block.y};
    t.linear = i;
    t.warp = i / 32;
    t.lane = i % 32;
    TSAN(t.tsan = set.tsan[i]);
  }
  for (unsigned i = n; i < w.lanes.size(); i++) w.lanes[i].done = true;
  for (unsigned k = 0; k < (n + 31) / 32; k++) {
    w.ready[k] = w.arrived[k] = 0;
    w.gone[k] = n - 32 * k >= 32 ? 0 : ~((1u << (n - 32 * k)) - 1);
    w.fresh[k] = n - 32 * k >= 32 ? ~0u : (1u << (n - 32 * k)) - 1;
    w.runnable |= 1u << k;
  }
  w.warp_at = j.seed == 1 ? (n + 31) / 32 - 1 : 0;
  w.live = w.threads = n;
  w.at_barrier = w.exited = w.phase = 0;
  w.vote_or = 0;
  w.vote_and = 1;
  w.vote_count = 0;
  TSAN(w.tsan_main = __tsan_get_current_fiber());
  w.start = pick(w);
  w.running = &w.main;
  jump(w, idle_fiber(w, *w.start));
  w.st.blocks++;
  w.st.threads += n;
  TSAN(w.copy_pool.swap(set.copies); set.arena = w.arena;)
  if (w.failed) {  // the stacks hold half-run lanes: drop them
    TSAN(for (auto& s
              : w.sets) {
      for (void* t : s.tsan) __tsan_destroy_fiber(t);
      s.tsan.clear();
      s.fiber.clear();
    })
    for (auto& f : w.all) {
      ASAN(__asan_unpoison_memory_region(f->lo, f->size));
      munmap(static_cast<char*>(f->lo) - 4096, stack_bytes + 4096);
    }
    w.all.clear();
    w.idle.clear();
  }
  if (!w.failed) {
#if !defined(__SANITIZE_ADDRESS__)
    for (auto [a, b] : w.gaps)
      for (size_t i = a; i < b; i++)
        if (w.arena[i] != 0xA5) {
          std::lock_guard g(j.m);
          if (!j.failed.exchange(true))
            j.error = who(w.lanes[0]) + " (some thread of this block) wrote outside its shared memory, " +
                      (i < 1024 ? std::to_string(1024 - i) + " bytes before the start"
                                : std::to_string(i - a) + " bytes past the end of an array");
          goto checked;
        }
  checked:;
#endif
  }
  ASAN(__asan_poison_memory_region(w.arena, arena_bytes));
  self = nullptr;
  w.job = nullptr;
}
void run_blocks(Job& j) {
  Worker& w = worker_here();
  for (;;) {
    uint64_t i = j.next++;
    if (i >= j.blocks || j.failed) break;
    if (j.seed == 1) i = j.blocks - 1 - i;
    if (j.seed > 1) i = (i * 7919 + j.seed) % j.blocks;  // 7919 is prime; see submit for its multiples
    run_block(w, j, i);
  }
  std::lock_guard g(stats_mutex);
  uint64_t* a = &total.launches;
  const uint64_t* b = &w.st.launches;
  for (size_t k = 0; k < sizeof(Stats) / 8; k++) a[k] += b[k];
  w.st = {};
}

// ---- helpers on other OS threads ------------------------------------------------------------
struct Pool {
  std::mutex m;
  std::condition_variable go, end;
  Job* job = nullptr;
  unsigned generation = 0, busy = 0;
  std::vector<std::thread> threads;
  bool stop = false;
  void ensure(int n) {
    while (int(threads.size()) < n)
      threads.emplace_back([this, seen = generation]() mutable {
        std::unique_lock l(m);
        for (;;) {
          go.wait(l, [&] { return stop || generation != seen; });
          if (stop) return;
          seen = generation;
          Job* j = job;
          l.unlock();
          run_blocks(*j);
          l.lock();
          if (--busy == 0) end.notify_all();
        }
      });
  }
  void run(Job& j, int helpers) {
    {
      std::lock_guard l(m);
      ensure(helpers);
      job = &j;
      busy = unsigned(threads.size());
      generation++;
    }
    go.notify_all();
    run_blocks(j);
    std::unique_lock l(m);
    end.wait(l, [&] { return busy == 0; });
  }
  ~Pool() {
    {
      std::lock_guard l(m);
      stop = true;
    }
    go.notify_all();
    for (auto& t : threads) t.join();
  }
};
Pool pool;

void on_fault(int sig, siginfo_t* si, void*) {
  char b[512];
  int n;
  if (self && w_tls && w_tls->job)
    n = snprintf(b, sizeof b, "simt: illegal or misaligned memory access at %p in kernel %.*s, %s\n", si->si_addr,
                 int(w_tls->job->kernel.size()), w_tls->job->kernel.data(), who(*self).c_str());
  else
    n = snprintf(b, sizeof b, "simt: host code touched %p (a device pointer used on the host?)\n", si->si_addr);
  if (write(2, b, size_t(n)) < 0) {
  }
  _exit(128 + sig);
}
const bool installed = [] {
#if !defined(__SANITIZE_ADDRESS__) && !SIMT_TSAN
  static char alt[64 * 1024];
  stack_t s{};
  s.ss_sp = alt;
  s.ss_size = sizeof alt;
  sigaltstack(&s, nullptr);
  struct sigaction a {};
  a.sa_sigaction = on_fault;
  a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
  sigaction(SIGSEGV, &a, nullptr);
  sigaction(SIGBUS, &a, nullptr);
#endif
  (void)on_fault;
  return true;
}();
}  // namespace

// ---- what device code calls -----------------------------------------------------------------
void fail(const std::string& what, const Loc& l) {
  if (!self) {
    fprintf(stderr, "simt: %s (outside a kernel)\n", what.c_str());
    abort();
  }
  abandon(W(), who(*self) + ": " + what + " (" + at(l) + ")");
}
void converge(Op op, unsigned mask, void* mine, Combine combine, const Loc& loc) {
  Worker& w = W();
  Lane* me = self;
  Lane* base = me - me->lane;
  if (!(mask >> me->lane & 1)) fail(std::string("lane ") + std::to_string(me->lane) + " is not in its own mask", loc);
  me->op = op;
  me->mask = mask;
  me->loc = loc;
  me->slot = mine;
  TSAN(if (op == Op::syncwarp) __tsan_release(bar_sync(w, 2 + me->warp)));
  if (unsigned gone = mask & w.gone[me->warp]) {
    const Lane& o = base[std::countr_zero(gone)];
    if (o.linear == 0 && &o != w.lanes.data()) fail("the mask names lanes beyond the block", loc);
    fail(std::string(op_name(op)) + " waits for " + who(o) + ", which has exited", loc);
  }
  unsigned& arrived = w.arrived[me->warp];
  arrived |= 1u << me->lane;
  if ((arrived & mask) == mask) {
    for (unsigned m = mask; m; m &= m - 1) {
      const Lane& o = base[std::countr_zero(m)];
      if (o.op != op || o.mask != mask || !same_site(o.loc, loc)) {
        char masks[64];
        snprintf(masks, sizeof masks, ", masks %08x and %08x", mask, o.mask);
        fail(std::string(op_name(op)) + " meets " + who(o) + " waiting at " + op_name(o.op) + " " + at(o.loc) + masks,
             loc);
      }
    }
    arrived &= ~mask;
    w.st.collectives++;
    if (combine) {
      Gather g;
      g.mask = mask;
      for (unsigned m = mask; m; m &= m - 1) {
        int i = std::countr_zero(m);
        g.slot[i] = base[i].slot;
      }
      combine(g);
    }
    for (unsigned m = mask; m; m &= m - 1) {
      Lane& o = base[std::countr_zero(m)];
      if (&o != me) set_ready(w, o);
    }
    me->op = Op::none;
    if (w.job->seed > 1 && (next_random(w) & 1)) {
      set_ready(w, *me);
      block_on(w);
    }
  } else
    block_on(w);
  TSAN(if (op == Op::syncwarp) __tsan_acquire(bar_sync(w, 2 + me->warp)));
}
int block_barrier(int p, int kind, const Loc& loc) {
  Worker& w = W();
  Lane* me = self;
  if (w.exited && config.strict_exit) {
    for (auto& t : w.lanes)
      if (t.done) fail("__syncthreads after " + who(t) + " has exited", loc);
  }
  if (w.at_barrier == 0)
    w.first_at_barrier = me;
  else if (!same_site(w.first_at_barrier->loc, loc))
    fail("__syncthreads meets " + who(*w.first_at_barrier) + " waiting at another __syncthreads, " +
             at(w.first_at_barrier->loc),
         loc);
  w.vote_or |= p != 0;
  w.vote_and &= p != 0;
  w.vote_count += p != 0;
  me->op = Op::barrier;
  me->loc = loc;
  me->mask = 0;
  [[maybe_unused]] unsigned ph = w.phase & 1;
  TSAN(__tsan_release(bar_sync(w, ph)));
  if (++w.at_barrier == w.live) {
    open_barrier(w, me);
    if (w.job->seed > 1) {
      set_ready(w, *me);
      block_on(w);
    }
  } else
    block_on(w);
  TSAN(__tsan_acquire(bar_sync(w, ph)));
  return kind ? w.voted[kind - 1] : 0;
}
void* dynamic_shared() { return W().arena + 1024; }
void* static_shared(size_t bytes, size_t align) {
  Worker& w = W();
  size_t a = (w.used + align - 1) / align * align;
  w.static_used += bytes;
  [[maybe_unused]] Quiet quiet;
  if (w.static_used > 48 * 1024) fail("more than 48 KiB of static shared memory");
  if (w.static_used + w.job->smem > w.job->smem_limit)
    fail("static (" + std::to_string(w.static_used) + ") plus dynamic (" + std::to_string(w.job->smem) +
         ") shared memory above the device limit of " + std::to_string(w.job->smem_limit));
  ASAN(__asan_unpoison_memory_region(w.arena + a, bytes));
  memset(w.arena + a, 0xFF, bytes);
  w.used = a + bytes;
#if !defined(__SANITIZE_ADDRESS__)
  memset(w.arena + w.used, 0xA5, gap);
  w.gaps.push_back({w.used, w.used + gap});
#endif
  w.used += gap;
  return w.arena + a;
}
void check_shared(const void* p, size_t bytes, size_t align, const char* what, const Loc& l) {
  Worker& w = W();
  auto* q = static_cast<const unsigned char*>(p);
  if (reinterpret_cast<uintptr_t>(p) % align)
    fail(std::string(what) + ": shared address is not aligned to " + std::to_string(align), l);
  if (q < w.arena + 1024 || q + bytes > w.arena + w.used)
    fail(std::string(what) + ": address is not in shared memory", l);
  for (auto [a, b] : w.gaps)
    if (q + bytes > w.arena + a && q < w.arena + b)
      fail(std::string(what) + ": address is outside every shared array", l);
}
void fence() { TSAN(static char global_fence; __tsan_acquire(&global_fence); __tsan_release(&global_fence)); }
void count_ldmatrix_phase(const void* const* rows) {
  Worker& w = W();
  unsigned hit[8]{}, worst = 0;
  for (int i = 0; i < 8; i++) {
    bool again = false;
    for (int k = 0; k < i; k++) again |= rows[k] == rows[i];
    if (!again) worst = std::max(worst, ++hit[reinterpret_cast<uintptr_t>(rows[i]) / 16 % 8]);
  }
  w.st.ldmatrix_phases++;
  w.st.ldmatrix_conflicts += worst - 1;
}
Copies& copies() {
  if (!self->copies) {
    Worker& w = W();
    [[maybe_unused]] Quiet quiet;
    if (w.copy_pool.size() <= self->linear) w.copy_pool.resize(self->linear + 1);
    if (!w.copy_pool[self->linear]) w.copy_pool[self->linear] = std::make_unique<Copies>();
    self->copies = w.copy_pool[self->linear].get();
  }
  return *self->copies;
}
bool late_copies() { return config.late; }
Stats stats() {
  std::lock_guard g(stats_mutex);
  return total;
}
void reset_stats() {
  std::lock_guard g(stats_mutex);
  total = {};
}
void set_seed(uint64_t s) { config.seed = s; }
std::string last_error() {
  std::lock_guard g(error_mutex);
  return error_text;
}
void set_error(std::string s) {
  std::lock_guard g(error_mutex);
  error_text = std::move(s);
}

cudaError_t run_grid(const tandem::kernels::cuda::Grid& g, std::string_view kernel, size_t param_bytes,
                     const std::function<void()>& thread, size_t smem_limit) {
  auto refuse = [&](std::string why) {
    set_error("kernel " + std::string(kernel) + " launched at " + at(g.where) + ": " + why);
    fprintf(stderr, "simt: %s\n", last_error().c_str());
    return cudaErrorInvalidConfiguration;
  };
  uint64_t n = uint64_t(g.block.x) * g.block.y * g.block.z;
  if (!n || n > 1024 || g.block.z > 64) return refuse("block of " + std::to_string(n) + " threads");
  if (!g.grid.x || !g.grid.y || !g.grid.z || g.grid.x > 0x7fffffffu || g.grid.y > 65535 || g.grid.z > 65535)
    return refuse("grid " + std::to_string(g.grid.x) + "x" + std::to_string(g.grid.y) + "x" + std::to_string(g.grid.z));
  if (g.sharedBytes > smem_limit)
    return refuse(std::to_string(g.sharedBytes) + " bytes of dynamic shared memory; the device has " +
                  std::to_string(smem_limit));
  if (param_bytes > 4096) return refuse("more than 4 KiB of kernel parameters");
  Job j;
  j.kernel = kernel;
  j.thread = &thread;
  j.grid = g.grid;
  j.block = g.block;
  j.smem = g.sharedBytes;
  j.where = g.where;
  j.smem_limit = smem_limit;
  j.seed = config.seed;
  j.blocks = uint64_t(g.grid.x) * g.grid.y * g.grid.z;
  if (j.seed > 1 && j.blocks % 7919 == 0) j.seed = 1;
  int helpers = int(std::min<uint64_t>(uint64_t(config.threads), j.blocks)) - 1;
  if (j.blocks * n < 2048) helpers = 0;
  TSAN(__tsan_release(&j.tsan_begin));
  if (helpers > 0)
    pool.run(j, config.threads - 1);
  else
    run_blocks(j);
  TSAN(__tsan_acquire(&j.tsan_done));
  {
    std::lock_guard l(stats_mutex);
    total.launches++;
  }
  if (j.failed) {
    set_error("kernel " + std::string(kernel) + " launched at " + at(g.where) + ": " + j.error);
    fprintf(stderr, "simt: %s\n", last_error().c_str());
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}
}  // namespace simt

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_on_error() {  // names the CUDA thread before ASan prints its report
  if (simt::self && simt::w_tls && simt::w_tls->job)
    fprintf(stderr, "simt: in kernel %.*s, %s\n", int(simt::w_tls->job->kernel.size()), simt::w_tls->job->kernel.data(),
            simt::who(*simt::self).c_str());
}
#endif
