#pragma once
// The backends that this build has, as the harness runs them.

#include <string>
#include <vector>

#include "kernels/backend.h"

namespace tandem::kernels::test {

struct BackendChoice {
  std::string name;
  bool isReference = false;  // compared only with itself, which proves the harness
  bool hasThreads = false;
  std::vector<std::string> matrixLibraries;
};
const std::vector<BackendChoice>& backendChoices();

// Made once for each thread count and matrix library; 0 threads and "auto" are the backend's own choice.
Backend& backendFor(const BackendChoice& choice, int threads = 0, const std::string& matrixLibrary = "auto");

// Lets an emulated device run its threads, warps and blocks in another order from now on; a real one does so by itself.
void changeOrderOfThreads();

}  // namespace tandem::kernels::test
