#include "tests/kernels/operators/finite_difference.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tests/kernels/operators/workspace.h"

namespace tandem::kernels::test {

namespace {

// In float64 a central difference with step h is wrong by h^2 f'''/6 + 1e-16 f/h; h = 1e-5 leaves about 1e-10 of both.
constexpr double stepSize = 1e-5;
constexpr double tolerance = 1e-7;
constexpr std::int64_t elementsPerInput = 40;

double lossOf(const Case& recipe, const Image& image) {
  double loss = 0;
  for (const auto& [output, gradient] : recipe.losses) {
    const std::vector<double> values = image.elements(output), weights = image.elements(gradient);
    for (std::size_t i = 0; i < values.size(); ++i) loss += values[i] * weights[weights.size() == 1 ? 0 : i];
  }
  return loss;
}

// The loss after the first step, the forward operator, from `start` with one element moved.
double lossWith(const Image& start, const std::string& input, std::int64_t index, double move, Placement& place) {
  Image moved = start;
  moved.setElement(input, index, start.element(input, index) + move);
  place.upload(moved);
  place.run(start.recipe().steps.front());
  place.download(moved);
  return lossOf(start.recipe(), moved);
}

}  // namespace

std::string checkDerivatives(const Case& recipe) {
  const auto reference = makeReferenceBackend();
  const Image start(recipe, DType::f64, 21);
  Image end = start;
  Placement place(*reference, start);
  for (const Step& step : recipe.steps) place.run(step);
  place.download(end);

  std::ostringstream complaints;
  complaints.precision(10);
  for (const auto& [input, gradient] : recipe.derivatives) {
    const std::vector<double> analytic = end.elements(gradient);
    const auto count = static_cast<std::int64_t>(analytic.size());
    double largest = 0;
    for (const double value : analytic) largest = std::max(largest, std::abs(value));
    const std::int64_t stride = std::max<std::int64_t>(1, count / elementsPerInput);
    for (std::int64_t i = 0; i < count; i += stride) {
      const double difference =
          (lossWith(start, input, i, stepSize, place) - lossWith(start, input, i, -stepSize, place)) / (2 * stepSize);
      const double derivative = analytic[static_cast<std::size_t>(i)];
      if (std::abs(derivative - difference) <= tolerance * (1 + largest)) continue;
      complaints << gradient << "[" << i << "] is " << derivative << ", the finite difference " << difference << "\n";
      break;
    }
  }
  return complaints.str();
}

}  // namespace tandem::kernels::test
