// A model's configuration (config.json), and what the program built from it needs.

#include <cmath>

#include "common/graph/operators.h"
#include "common/model/transformer.h"
#include "tests/fuzz/fuzz.h"

void tandem::fuzz::fuzzOne(std::string_view bytes) {
  accepts([&] {
    model::Configuration configuration = model::parseConfiguration(std::string(bytes), "of the input");
    for (const float frequency : configuration.rotaryFrequencies) {
      demand(std::isfinite(frequency), "frequencies are numbers");
    }
    demand(configuration.normEpsilon > 0 || configuration.normEpsilon == 0, "the epsilon is a number");
    configuration.layers = std::min<std::int64_t>(configuration.layers, 3);
    const graph::Program program = model::buildLoss(configuration, 1, 1, base::DType::bf16);
    graph::check(program);
    demand(program.parameterCount() > 0, "a model has parameters, and their number fits");
  });
}
