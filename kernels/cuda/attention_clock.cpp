#include "kernels/cuda/attention_clock.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/device.h"

namespace tandem::kernels::cuda {

AttentionClock::~AttentionClock() {
  if (started_ != nullptr) cudaEventDestroy(started_);
  for (const Sample& sample : underWay_) {
    cudaEventDestroy(sample.begin);
    cudaEventDestroy(sample.end);
  }
}

void AttentionClock::start(cudaStream_t stream) {
  if (started_ == nullptr) check(cudaEventCreate(&started_), "making an event");
  check(cudaEventRecord(started_, stream), "timing attention");
}

void AttentionClock::end(const std::string& kind, double operations, cudaStream_t stream) {
  Total& total = totals_[kind];
  if (++total.begun == 1 || total.begun > timedCalls + 1) return;
  Sample sample{.kind = kind, .operations = operations, .begin = std::exchange(started_, nullptr)};
  check(cudaEventCreate(&sample.end), "making an event");
  underWay_.push_back(sample);
  check(cudaEventRecord(sample.end, stream), "timing attention");
}

void AttentionClock::collect() {
  std::erase_if(underWay_, [&](const Sample& sample) {
    if (cudaEventQuery(sample.end) != cudaSuccess) {
      cudaGetLastError();  // forgets that it is not ready
      return false;
    }
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, sample.begin, sample.end), "timing attention");
    Total& total = totals_[sample.kind];
    ++total.finished;
    total.operations += sample.operations;
    total.seconds += 1e-3 * static_cast<double>(milliseconds);
    cudaEventDestroy(sample.begin);
    cudaEventDestroy(sample.end);
    return true;
  });
}

std::map<std::string, AttentionClock::Rate> AttentionClock::rates() {
  collect();
  std::map<std::string, Rate> rates;
  for (const auto& [kind, total] : totals_) {
    rates[kind] = {total.finished, total.seconds > 0 ? total.operations / total.seconds : 0};
  }
  return rates;
}

double attentionOperations(std::int64_t batch, std::int64_t heads, std::int64_t time, std::int64_t headSize,
                           std::int64_t window, bool isBackward) {
  const auto tokens = static_cast<double>(time);
  const double seen = window > 0 ? static_cast<double>(std::min(window, time)) : tokens;
  // Query t sees min(t + 1, seen) keys.
  const double pairs = seen * (tokens - seen) + seen * (seen + 1) / 2;
  const double forward = 4.0 * static_cast<double>(batch * heads * headSize) * pairs;
  return isBackward ? 2.5 * forward : forward;
}

}  // namespace tandem::kernels::cuda
