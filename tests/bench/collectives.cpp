// Seconds of a sum over all ranks that everybody gets, by size: the library's all-reduce, on each way there is
// (common/comm/routed.h), and dealt out and gathered; measured in turns.
//
//   mpirun ... collectives_bench [TIMES]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "common/comm/routed.h"
#include "common/comm/session.h"

namespace {

using namespace tandem;
using comm::Collective;
using comm::Route;

constexpr Route routes[] = {Route::library, Route::ring, Route::halving, Route::hierarchical, Route::automatic};

double secondsOf(comm::Communicator& world, const std::function<void()>& work) {
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  work();
  const double own = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return comm::allReduceScalar(world, own, comm::Reduction::maximum);
}

void allReduce(comm::Communicator& group, std::vector<float>& values) {
  group.allReduce({values.data(), base::DType::f32, std::ssize(values)});
}

void sumInParts(comm::Communicator& group, std::vector<float>& values) {
  const auto total = std::ssize(values);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), total / group.size());
  counts.back() += total % group.size();
  float* const own = values.data() + total / group.size() * group.rank();
  const comm::Buffer all{values.data(), base::DType::f32, total};
  const comm::Buffer part{own, base::DType::f32, counts[static_cast<std::size_t>(group.rank())]};
  group.reduceScatter(all, part, counts);
  group.allGather(part, all, counts);
}

struct Work {
  const char* name;
  Collective collective;  // whose way `automatic` takes is printed
  void (*run)(comm::Communicator&, std::vector<float>&);
};
constexpr Work works[] = {{"all-reduce, by the library MPI_Allreduce", Collective::allReduce, allReduce},
                          {"reduce-scatter, then all-gather", Collective::reduceScatter, sumInParts}};

void benchOne(comm::Communicator& world, const std::vector<std::unique_ptr<comm::Communicator>>& groups,
              const Work& work, int times) {
  if (world.rank() == 0) {
    std::printf("%s\n%12s", work.name, "bytes");
    for (const Route route : routes) std::printf("%14s", comm::name(route).c_str());
    std::printf("%14s%18s\n", "auto takes", "library / auto");
  }
  for (const std::int64_t bytes : {4'000LL, 64'000LL, 1'000'000LL, 10'000'000LL, 50'000'000LL}) {
    std::vector<float> values(static_cast<std::size_t>(bytes / 4));
    std::vector<double> least(groups.size(), 1e30);
    for (int time = 0; time < times; ++time) {
      for (std::size_t way = 0; way < groups.size(); ++way) {
        least[way] = std::min(least[way], secondsOf(world, [&] { work.run(*groups[way], values); }));
      }
    }
    if (world.rank() != 0) continue;
    std::printf("%12lld", static_cast<long long>(bytes));
    for (const double seconds : least) std::printf("%14.3f", 1e3 * seconds);
    std::printf("%14s%18.2f\n", comm::name(comm::routeOf(*groups.back(), work.collective, bytes)).c_str(),
                least.front() / least.back());
    std::fflush(stdout);
  }
}

int bench(comm::Communicator& world, int times) {
  std::vector<std::unique_ptr<comm::Communicator>> groups;
  for (const Route route : routes) groups.push_back(comm::makeRouted(world, {.route = route}));
  if (world.rank() == 0) std::printf("milliseconds on %d ranks, the least of %d turns\n", world.size(), times);
  for (const Work& work : works) benchOne(world, groups, work, times);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int times = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  return tandem::comm::Session::run(argc, argv, [&](comm::Communicator& world) { return bench(world, times); });
}
