#include "common/train/measured_cluster.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "common/runtime/executable.h"
#include "common/runtime/matrix_rate.h"

namespace tandem::train {
namespace {

using Clock = std::chrono::steady_clock;

// The mean of as many times as a while takes: what is best of some times is that of a rank which has a processor to
// itself by chance, where ranks share them.
double secondsOf(const std::function<void()>& work) {
  constexpr double shortest = 0.1;
  work();
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  int times = 0;
  do {
    work();
    ++times;
  } while (elapsed() < shortest);
  return elapsed() / times;
}

double slowest(comm::Communicator& ranks, double seconds) {
  return comm::allReduceScalar(ranks, seconds, comm::Reduction::maximum);
}

// Of a sum of two arrays, which no cache holds.
double memoryRate(const Device& device) {
  constexpr std::int64_t count = 8 << 20, bytes = 3 * count * 4;
  const runtime::DeviceMemory memory(device.backend, bytes);
  const auto array = [&](std::int64_t index) {
    return kernels::TensorView(memory.data() + index * count * 4, base::DType::f32, {count});
  };
  for (std::int64_t index = 0; index < 3; ++index) {
    device.backend.run(kernels::Fill{.target = array(index), .value = 0}, device.stream);
  }
  device.stream.synchronize();
  return static_cast<double>(bytes) / secondsOf([&] {
           device.backend.run(kernels::Add{.left = array(0), .right = array(1), .output = array(2)}, device.stream);
           device.stream.synchronize();
         });
}

double launchSeconds(const Device& device) {
  constexpr int many = 200;
  const runtime::DeviceMemory memory(device.backend, 256);
  const kernels::TensorView little(memory.data(), base::DType::f32, {64});
  return secondsOf([&] {
           for (int i = 0; i < many; ++i)
             device.backend.run(kernels::Fill{.target = little, .value = 0}, device.stream);
           device.stream.synchronize();
         }) /
         many;
}

// Every rank of a group sends to the next and receives from the one before.
class Ring {
 public:
  Ring(std::unique_ptr<comm::Communicator> group, const Device& device)
      : group_(std::move(group)), device_(device), sent_(device.backend, most), received_(device.backend, most) {}

  // Of one exchange of many, which follow each other without a pause.
  double seconds(std::int64_t bytes, int times) {
    const int ranks = group_->size(), next = (group_->rank() + 1) % ranks,
              previous = (group_->rank() + ranks - 1) % ranks;
    group_->barrier();
    const Clock::time_point start = Clock::now();
    for (int time = 0; time < times; ++time) {
      const auto receiving = group_->startReceive({received_.data(), base::DType::u8, bytes}, previous, 0);
      const auto sending = group_->startSend({sent_.data(), base::DType::u8, bytes}, next, 0);
      receiving->wait();
      sending->wait();
      device_.stream.synchronize();
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / times;
  }
  static constexpr std::int64_t little = 64, most = 4 << 20;

 private:
  std::unique_ptr<comm::Communicator> group_;
  const Device& device_;
  runtime::DeviceMemory sent_, received_;
};

// Of one rank, each way.
sharding::Link measureLink(comm::Communicator& ranks, const Device& device, int colour) {
  constexpr int many = 100, some = 8;
  Ring ring(device.exchangeOr(ranks).split(colour, ranks.rank()), device);
  ring.seconds(Ring::most, 1);  // makes what the library needs for it
  const double latency = slowest(ranks, ring.seconds(Ring::little, many));
  const double whole = slowest(ranks, ring.seconds(Ring::most, some));
  return {.bytesPerSecond = static_cast<double>(Ring::most) / std::max(whole - latency, 1e-9),
          .latencySeconds = latency};
}

}  // namespace

sharding::Cluster measureCluster(comm::Communicator& ranks, const Device& device, base::DType storage,
                                 std::int64_t memoryBytes) {
  sharding::Cluster cluster{.name = "these ranks"};
  const std::int64_t onHost = ranks.ranksOnThisHost();
  const bool regular = comm::allReduceScalar(ranks, onHost, comm::Reduction::minimum) ==
                           comm::allReduceScalar(ranks, onHost, comm::Reduction::maximum) &&
                       ranks.size() % onHost == 0;
  cluster.devicesPerNode = regular ? static_cast<int>(onHost) : 1;
  cluster.nodes = ranks.size() / cluster.devicesPerNode;
  cluster.memoryBytes = comm::allReduceScalar(ranks, memoryBytes, comm::Reduction::minimum);
  ranks.barrier();
  const runtime::MatrixRates rates = runtime::measureMatrixRates(storage, device.backend, device.stream);
  cluster.matrixRateF32 = cluster.matrixRateBf16 = comm::allReduceScalar(ranks, rates.mean, comm::Reduction::minimum);
  cluster.sharing = comm::allReduceScalar(ranks, rates.best / rates.mean, comm::Reduction::minimum);
  cluster.memoryRate = comm::allReduceScalar(ranks, memoryRate(device), comm::Reduction::minimum);
  cluster.launchSeconds = slowest(ranks, launchSeconds(device));
  // Processors that move bytes do not compute meanwhile.
  cluster.overlap = device.backend.isHostMemory() ? 0 : 1;
  cluster.exchangesOnHost = device.backend.isHostMemory();
  const int place = ranks.rank() % cluster.devicesPerNode, node = ranks.rank() / cluster.devicesPerNode;
  if (cluster.devicesPerNode > 1) cluster.inside = measureLink(ranks, device, node);
  if (cluster.nodes > 1) {
    cluster.between = measureLink(ranks, device, place);
    cluster.between.bytesPerSecond *= cluster.devicesPerNode;
  }
  return cluster;
}

}  // namespace tandem::train
