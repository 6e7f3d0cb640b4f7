#pragma once
// The modes of the harness that print a table instead of judging.

#include <string>

namespace tandem::kernels::test {

struct ModeOptions {
  std::string backend;       // only this one; all when empty
  std::string operatorName;  // only operators whose name or case contains this
  int threads = 0;           // 0: what the backend takes itself
};

// GFLOP/s and GB/s of every operator at the sizes of training GPT-2 124M, beside the ceilings measured on the same
// backend.
void printPerformance(const ModeOptions& options);

// Which operators each backend has, by storage type: yes, no (it refused), or wrong.
void printSupport(const ModeOptions& options);

}  // namespace tandem::kernels::test
