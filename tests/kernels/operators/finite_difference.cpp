#include "tests/kernels/operators/finite_difference.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tests/kernels/operators/workspace.h"

namespace tandem::kernels::test {

namespace {

// In float64 a central difference with step h is wrong by h^2 f'''/6 + 1e-16 f/h; h = 1e-5 leaves about 1e-10 of both.
constexpr double tolerance = 1e-7;

double lossOf(const Case& recipe, const Image& image) {
  double loss = 0;
  for (const auto& [output, gradient] : recipe.losses) {
    const std::vector<double> values = image.elements(output), weights = image.elements(gradient);
    for (std::size_t i = 0; i < values.size(); ++i) loss += values[i] * weights[weights.size() == 1 ? 0 : i];
  }
  return loss;
}

// One change of an operand: an element moved, or all of them along a direction.
using Direction = std::vector<double>;

// The loss after the first step, the forward operator, with `input` moved from where it is in `start`.
double lossWith(const Image& start, const std::string& input, const Direction& direction, double distance,
                Placement& place) {
  std::vector<double> all = start.elements(input);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] += distance * direction[i];
  Image moved = start;
  moved.setElements(input, all);
  place.upload(moved);
  place.run(start.recipe().steps.front());
  place.download(moved);
  return lossOf(start.recipe(), moved);
}

// All elements at once, with signs by chance, so that none is left out; then some alone, to tell where it is wrong.
std::vector<Direction> directionsFor(std::size_t count) {
  std::vector<Direction> all;
  base::RandomStream random(22, count);
  for (int repetition = 0; repetition < 3; ++repetition) {
    Direction signs(count);
    for (double& sign : signs) sign = random.nextBelow(2) == 0 ? -1 : 1;
    all.push_back(signs);
  }
  for (std::size_t i = 0; i < count; i += std::max<std::size_t>(1, count / 5)) {
    all.emplace_back(count);
    all.back()[i] = 1;
  }
  return all;
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
    for (const Direction& direction : directionsFor(analytic.size())) {
      double derivative = 0, squares = 0;
      for (std::size_t i = 0; i < direction.size(); ++i) {
        derivative += direction[i] * analytic[i];
        squares += direction[i] * direction[i] * analytic[i] * analytic[i];
      }
      const double step = recipe.differenceStep;
      const double above = lossWith(start, input, direction, step, place);
      const double below = lossWith(start, input, direction, -step, place);
      const double difference = (above - below) / (2 * step);
      const double rounding = 1e-15 * (std::abs(above) + std::abs(below)) / step;
      if (std::abs(derivative - difference) <= tolerance * (1 + std::sqrt(squares)) + rounding) continue;
      complaints << gradient << ": the derivative in direction " << direction[0] << ", ... is " << derivative
                 << ", the finite difference " << difference << "\n";
      break;
    }
  }
  return complaints.str();
}

}  // namespace tandem::kernels::test
