#pragma once
// Looking through the weights of models: whether they are numbers, and where two models differ.

#include <cstdint>
#include <string>
#include <vector>

#include "common/checkpoint/model_source.h"

namespace tandem::checkpoint {

struct Soundness {
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;  // of all weights, as they are stored
};

// Reads every weight; ranks share the parameters. Throws Error of kind badData, naming parameter and element, for one
// that is no finite number. Collective.
Soundness examine(comm::Communicator& communicator, const ModelSource& model);

struct ParameterDifference {
  std::string name;
  std::string problem;         // in the way of a comparison: it is missing in one, or of another shape
  std::int64_t different = 0;  // elements
  double largest = 0;          // of their differences
  double relative = 0;         // length of the difference by that of the first
  bool same() const { return problem.empty() && different == 0; }
};

// All parameters of either model, as float32; ranks share them, and all get all. Collective.
std::vector<ParameterDifference> compare(comm::Communicator& communicator, const ModelSource& first,
                                         const ModelSource& second);

}  // namespace tandem::checkpoint
