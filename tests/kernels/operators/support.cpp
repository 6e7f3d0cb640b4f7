#include <cstdio>
#include <map>
#include <tuple>

#include "tests/kernels/operators/agreement.h"
#include "tests/kernels/operators/backends.h"
#include "tests/kernels/operators/modes.h"

namespace tandem::kernels::test {

namespace {

const char* verdict(const Case& recipe, DType type, Backend& backend) {
  try {
    return compareSteps(recipe, type, backend).empty() ? "yes" : "wrong";
  } catch (const base::Error&) {
    return "no";
  }
}

}  // namespace

void printSupport(const ModeOptions& options) {
  constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
  std::printf("%-22s", "operator");
  for (const BackendChoice& choice : backendChoices()) {
    for (const DType type : types) std::printf(" %-20s", (choice.name + "/" + base::name(type)).c_str());
  }
  std::printf("\n");

  // An operator has what all its cases have; "-" where the contract knows no such storage.
  std::map<std::string, std::map<std::pair<std::string, DType>, std::string>> table;
  for (const Case& recipe : registry().cases) {
    for (const BackendChoice& choice : backendChoices()) {
      if (!options.backend.empty() && choice.name != options.backend) continue;
      for (const DType type : recipe.types) {
        const std::string found = verdict(recipe, type, backendFor(choice, options.threads));
        for (const Step& step : recipe.steps) {
          std::string& cell = table[step.operatorName][{choice.name, type}];
          if (cell.empty() || cell == "yes") cell = found;
        }
      }
    }
  }
  for (auto& [operatorName, cells] : table) {
    if (operatorName.find(options.operatorName) == std::string::npos) continue;
    std::printf("%-22s", operatorName.c_str());
    for (const BackendChoice& choice : backendChoices()) {
      for (const DType type : types) {
        const std::string& cell = cells[{choice.name, type}];
        std::printf(" %-20s", cell.empty() ? "-" : cell.c_str());
      }
    }
    std::printf("\n");
  }
}

}  // namespace tandem::kernels::test
