#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

Draw normal(double deviation, double mean) {
  return [=](base::RandomStream& random, std::vector<double>& all) {
    for (double& value : all) value = mean + deviation * static_cast<double>(random.nextNormal());
  };
}

Draw uniformIndex(std::int64_t bound) {
  return [=](base::RandomStream& random, std::vector<double>& all) {
    for (double& value : all) value = static_cast<double>(random.nextBelow(static_cast<std::uint64_t>(bound)));
  };
}

Draw targets(std::int64_t bound, double maskedShare) {
  return [=](base::RandomStream& random, std::vector<double>& all) {
    for (double& value : all) {
      const bool masked = static_cast<double>(random.nextUniform()) < maskedShare;
      const double target = static_cast<double>(random.nextBelow(static_cast<std::uint64_t>(bound)));
      value = masked ? -1 : target;
    }
  };
}

Draw constant(double constantValue) {
  return [=](base::RandomStream&, std::vector<double>& all) { all.assign(all.size(), constantValue); };
}

Draw values(std::vector<double> given) {
  return [given = std::move(given)](base::RandomStream&, std::vector<double>& all) {
    TANDEM_ASSERT(given.size() == all.size(), "the given values fill the operand");
    all = given;
  };
}

ConstTensorView Operands::in(const std::string& name) {
  const auto found = views_.find(name);
  if (found == views_.end()) return {};
  read_.insert(name);
  return found->second;
}

TensorView Operands::out(const std::string& name) {
  const auto found = views_.find(name);
  if (found == views_.end()) return {};
  written_.insert(name);
  return found->second;
}

void Operands::forget() {
  read_.clear();
  written_.clear();
}

Case& Case::add(Operand operand) {
  if (operand.strides.rank() == 0) operand.strides = TensorView(nullptr, DType::f32, operand.shape).strides;
  operands.push_back(std::move(operand));
  return *this;
}

Case& Case::inPlace(const std::string& name, const std::string& of) {
  Operand copy = operand(of);
  copy.name = name;
  copy.draw = nullptr;
  return add(std::move(copy));
}

const Operand& Case::operand(const std::string& operandName) const {
  for (const Operand& each : operands) {
    if (each.name == operandName) return each;
  }
  base::assertionFailed("operand exists", name() + " has no operand " + operandName, std::source_location::current());
}

const Registry& registry() {
  static const Registry all = [] {
    Registry filled;
    addEmbeddingCases(filled);
    addNormCases(filled);
    addLinearCases(filled);
    addQuantisedCases(filled);
    addActivationCases(filled);
    addRotaryCases(filled);
    addAttentionCases(filled);
    addCrossEntropyCases(filled);
    addOptimizerCases(filled);
    addDropoutCases(filled);
    addRescaleCases(filled);
    addFlatCases(filled);
    return filled;
  }();
  return all;
}

}  // namespace tandem::kernels::test
