#include "tests/kernels/operators/backends.h"

#include <map>
#include <tuple>

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
  if (choice.name == "cpu") backend = makeCpuBackend({.threads = threads, .matrixLibrary = matrixLibrary});
#ifdef TANDEM_TEST_CUDA
  if (choice.name == "cuda") backend = makeCudaBackend({});
#endif
  if (choice.name == "reference") backend = makeReferenceBackend();
  return *backend;
}

}  // namespace tandem::kernels::test
