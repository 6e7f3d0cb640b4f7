#pragma once
// The rate that attention reaches, measured on the calls of the run itself.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

namespace tandem::kernels::cuda {

// Times the first calls of each kind by events on their stream; nobody waits for them.
class AttentionClock {
 public:
  AttentionClock() = default;
  ~AttentionClock();
  AttentionClock(const AttentionClock&) = delete;
  AttentionClock& operator=(const AttentionClock&) = delete;

  // Around the launch of a call. What was started but not ended is forgotten.
  void start(cudaStream_t stream);
  void end(const std::string& kind, double operations, cudaStream_t stream);

  struct Rate {
    std::int64_t calls = 0;  // timed ones
    double operationsPerSecond = 0;
  };
  // Of what has run until now, by kind; without the first call of each, in which a plan may have been made.
  std::map<std::string, Rate> rates();

 private:
  static constexpr std::int64_t timedCalls = 64;  // of each kind
  struct Sample {
    std::string kind;
    double operations = 0;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  struct Total {
    std::int64_t begun = 0, finished = 0;
    double operations = 0, seconds = 0;
  };
  void collect();

  cudaEvent_t started_ = nullptr;
  std::deque<Sample> underWay_;
  std::map<std::string, Total> totals_;
};

// Floating-point operations of a call, as attention is usually counted: two products of each query with the keys that
// it sees by its place and the window (the causal half and no more; document boundaries are not taken off), 2.5 times
// as many in the backward pass.
double attentionOperations(std::int64_t batch, std::int64_t heads, std::int64_t time, std::int64_t headSize,
                           std::int64_t window, bool isBackward);

}  // namespace tandem::kernels::cuda
