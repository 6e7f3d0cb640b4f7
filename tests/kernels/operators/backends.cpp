#include "tests/kernels/operators/backends.h"

#include <cstdlib>
#include <map>
#include <tuple>

#ifdef TANDEM_TEST_EMULATED
#include "kernels/cuda/launch.h"
#endif

namespace tandem::kernels::test {

const std::vector<BackendChoice>& backendChoices() {
  static const std::vector<BackendChoice> choices = {
      {"reference", true, false, {}},
#ifdef TANDEM_TEST_CUDA
      {"cuda", false, false, {}},
#else
      {"cpu", false, true, {"onednn", "openblas"}},
#endif
  };
  return choices;
}

Backend& backendFor(const BackendChoice& choice, int threads, const std::string& matrixLibrary) {
  static std::map<std::tuple<std::string, int, std::string>, std::unique_ptr<Backend>> made;
  auto& backend = made[{choice.name, threads, matrixLibrary}];
  if (backend) return *backend;
#ifdef TANDEM_TEST_CUDA
  // TANDEM_TEST_ATTENTION is the path of attention to look at; auto without it.
  const char* const attention = std::getenv("TANDEM_TEST_ATTENTION");
  if (choice.name == "cuda") backend = makeCudaBackend({.attention = attention == nullptr ? "auto" : attention});
#else
  if (choice.name == "cpu") backend = makeCpuBackend({.threads = threads, .matrixLibrary = matrixLibrary});
#endif
  if (choice.name == "reference") backend = makeReferenceBackend();
  return *backend;
}

#ifdef TANDEM_TEST_EMULATED
void changeOrderOfThreads() {
  static std::uint64_t seed = 100;
  simt::set_seed(++seed);
}
#else
void changeOrderOfThreads() {}
#endif

}  // namespace tandem::kernels::test
