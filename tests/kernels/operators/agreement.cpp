#include "tests/kernels/operators/agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "tests/kernels/operators/backends.h"
#include "tests/kernels/operators/workspace.h"

namespace tandem::kernels::test {

namespace {

constexpr std::uint64_t seed = 20;

double toleranceOf(const Case& recipe, DType varied, const std::string& operand) {
  const Storage storage = recipe.operand(operand).storage;
  if (varied == DType::bf16 || storage == Storage::half) return recipe.halfTolerance;
  const bool isFloat16 = varied == DType::f16 || storage == Storage::float16;
  return isFloat16 ? std::max(recipe.singleTolerance, recipe.halfTolerance / 4) : recipe.singleTolerance;
}

// Root mean square of the finite elements.
double typicalMagnitude(const std::vector<double>& all) {
  double squares = 0;
  std::int64_t finite = 0;
  for (const double value : all) {
    if (!std::isfinite(value)) continue;
    squares += value * value;
    ++finite;
  }
  return finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
}

double errorOf(double got, double want, double typical) {
  if (std::isnan(got) || std::isnan(want) || std::isinf(got) || std::isinf(want)) {
    const bool same = got == want || (std::isnan(got) && std::isnan(want));
    return same ? 0 : std::numeric_limits<double>::infinity();
  }
  return got == want ? 0 : std::abs(got - want) / (std::abs(want) + typical);
}

void compareElements(const std::string& place, const std::vector<double>& got, const std::vector<double>& want,
                     double smallestMagnitude, double tolerance, std::ostream& complaints) {
  const double typical = std::max(typicalMagnitude(want), smallestMagnitude);
  std::size_t worst = 0, wrong = 0;
  double worstError = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = errorOf(got[i], want[i], typical);
    if (error > tolerance) ++wrong;
    if (error > worstError) {
      worst = i;
      worstError = error;
    }
  }
  if (wrong == 0) return;
  complaints.precision(9);
  complaints << place << ": " << wrong << " of " << want.size() << " elements differ; worst at " << worst << ": got "
             << got[worst] << ", the reference has " << want[worst] << ", error " << worstError << " > " << tolerance
             << "\n";
}

// Bytes outside the operands that were written have to be what they were.
void compareUntouched(const std::string& place, const std::set<std::string>& written, const Image& before,
                      const Image& after, std::ostream& complaints) {
  const Case& recipe = before.recipe();
  for (const auto& [name, bytes] : before.buffers) {
    std::vector<char> mayChange(bytes.size(), 0);
    for (const Operand& operand : recipe.operands) {
      if (operand.buffer != name || !written.contains(operand.name)) continue;
      const std::int64_t size = base::byteSize(elementType(operand.storage, before.varied()));
      visitPlaces(operand, [&](std::int64_t element) { std::fill_n(mayChange.begin() + element * size, size, 1); });
    }
    const std::vector<std::byte>& now = after.buffers.at(name);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (mayChange[i] != 0 || bytes[i] == now[i]) continue;
      complaints << place << ": byte " << i << " of " << name << ", which is no result, was overwritten\n";
      break;
    }
  }
}

}  // namespace

std::string compareSteps(const Case& recipe, DType varied, Backend& tested, int shift) {
  const auto reference = makeReferenceBackend();
  std::ostringstream complaints;
  Image before(recipe, varied, seed);
  Placement referencePlace(*reference, before), testedPlace(tested, before, shift);
  for (const Step& step : recipe.steps) {
    Image want = before, got = before;
    referencePlace.run(step);
    referencePlace.download(want);
    testedPlace.upload(before);
    testedPlace.run(step);
    testedPlace.download(got);
    const std::set<std::string> written = testedPlace.operands.written();
    for (const std::string& operand : written) {
      compareElements(step.operatorName + "." + operand, got.elements(operand), want.elements(operand),
                      recipe.smallestMagnitude, toleranceOf(recipe, varied, operand), complaints);
    }
    compareUntouched(step.operatorName, written, before, got, complaints);
    if (!testedPlace.guardsAreIntact()) complaints << step.operatorName << " wrote outside its operands\n";
    before = want;
  }
  return complaints.str();
}

std::string comparePass(const Case& recipe, DType varied, Backend& tested) {
  const auto reference = makeReferenceBackend();
  std::ostringstream complaints;
  Image got(recipe, varied, seed);
  Image want = got.widened();
  Placement referencePlace(*reference, want), testedPlace(tested, got);
  for (const Step& step : recipe.steps) {
    referencePlace.run(step);
    testedPlace.run(step);
  }
  referencePlace.download(want);
  testedPlace.download(got);
  // Four times the tolerance of one operator, since the roundings of several add up.
  for (const auto& [input, gradient] : recipe.derivatives) {
    compareElements(gradient, got.elements(gradient), want.elements(gradient), recipe.smallestMagnitude,
                    4 * toleranceOf(recipe, varied, gradient), complaints);
  }
  return complaints.str();
}

namespace {

// Poisons one element of `operand` and compares which results of `step` are non-finite.
void comparePoisoned(const Step& step, const std::string& operand, double poison, Image before, Placement& reference,
                     Placement& tested, std::ostream& complaints) {
  before.setElement(operand, before.recipe().operand(operand).shape.count() / 2, poison);
  Image want = before, got = before;
  reference.upload(before);
  reference.run(step);
  reference.download(want);
  tested.upload(before);
  tested.run(step);
  tested.download(got);
  for (const std::string& result : reference.operands.written()) {
    const auto wanted = want.elements(result), gotten = got.elements(result);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (std::isfinite(wanted[i]) || !std::isfinite(gotten[i])) continue;
      complaints << step.operatorName << ": " << poison << " in " << operand << " should make " << result << "[" << i
                 << "] " << wanted[i] << ", but it is " << gotten[i] << "\n";
      break;
    }
  }
}

}  // namespace

std::string compareNonFinite(const Case& recipe, DType varied, Backend& tested) {
  const auto reference = makeReferenceBackend();
  std::ostringstream complaints;
  Image before(recipe, varied, seed);
  Placement referencePlace(*reference, before), testedPlace(tested, before);
  for (const Step& step : recipe.steps) {
    Image after = before;
    referencePlace.upload(before);
    referencePlace.run(step);
    referencePlace.download(after);
    const std::set<std::string> read = referencePlace.operands.read();
    for (const std::string& name : read) {
      const Operand& operand = recipe.operand(name);
      const bool isInteger = operand.storage == Storage::index || operand.storage == Storage::codes;
      if (isInteger || operand.shape.count() == 0) continue;
      for (const double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        comparePoisoned(step, name, poison, before, referencePlace, testedPlace, complaints);
      }
    }
    before = after;
  }
  return complaints.str();
}

std::string compareRepetition(const Case& recipe, DType varied, Backend& tested) {
  const Image start(recipe, varied, seed);
  Image first = start, second = start;
  for (Image* image : {&first, &second}) {
    Placement place(tested, start);
    for (const Step& step : recipe.steps) place.run(step);
    place.download(*image);
    changeOrderOfThreads();
  }
  for (const auto& [name, bytes] : first.buffers) {
    if (bytes != second.buffers.at(name)) return name + " differs between two runs of the same operators\n";
  }
  return "";
}

}  // namespace tandem::kernels::test
