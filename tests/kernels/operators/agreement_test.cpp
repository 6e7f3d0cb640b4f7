// The operators of every backend against the reference, one test a case, storage type and backend.

#include "tests/kernels/operators/agreement.h"

#include <gtest/gtest.h>

#include "tests/kernels/operators/backends.h"
#include "tests/kernels/operators/finite_difference.h"

namespace tandem::kernels::test {

namespace {

struct Subject {
  const Case* recipe;
  DType type;
  const BackendChoice* backend;
};

std::string nameOf(const Subject& subject) {
  return subject.backend->name + "_" + base::name(subject.type) + "_" + subject.recipe->name();
}
std::string nameOfParameter(const testing::TestParamInfo<Subject>& info) { return nameOf(info.param); }
// Found by GoogleTest when it reports a failure.
void PrintTo(const Subject& subject, std::ostream* stream) { *stream << nameOf(subject); }

std::vector<Subject> subjects(bool (*wanted)(const Subject&)) {
  std::vector<Subject> all;
  for (const BackendChoice& backend : backendChoices()) {
    for (const Case& recipe : registry().cases) {
      for (const DType type : recipe.types) {
        if (wanted({&recipe, type, &backend})) all.push_back({&recipe, type, &backend});
      }
    }
  }
  return all;
}

class Operators : public testing::TestWithParam<Subject> {
 protected:
  const Case& recipe() const { return *GetParam().recipe; }
  DType type() const { return GetParam().type; }
  Backend& backend(int threads = 0) const { return backendFor(*GetParam().backend, threads); }
};

TEST_P(Operators, giveWhatTheReferenceGives) { EXPECT_EQ(compareSteps(recipe(), type(), backend()), ""); }

INSTANTIATE_TEST_SUITE_P(All, Operators, testing::ValuesIn(subjects([](const Subject&) { return true; })),
                         nameOfParameter);

// On a device float16 takes the kernels of bfloat16 with another conversion, which is compared once.
bool isTested(const Subject& subject) {
  return !subject.backend->isReference && (subject.backend->hasThreads || subject.type != DType::f16);
}

class TestedOperators : public Operators {};

TEST_P(TestedOperators, takeDataAtAnyAddress) { EXPECT_EQ(compareSteps(recipe(), type(), backend(), 1), ""); }

TEST_P(TestedOperators, doNotHideWhatIsNoNumber) { EXPECT_EQ(compareNonFinite(recipe(), type(), backend()), ""); }

INSTANTIATE_TEST_SUITE_P(All, TestedOperators, testing::ValuesIn(subjects(isTested)), nameOfParameter);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TestedOperators);

class ThreadedOperators : public Operators {};

// More threads than rows, and than processors, are among them.
TEST_P(ThreadedOperators, giveTheSameWithAnyNumberOfThreads) {
  for (const int threads : {1, 3}) {
    EXPECT_EQ(compareSteps(recipe(), type(), backend(threads)), "") << "with " << threads << " threads";
  }
}

TEST_P(ThreadedOperators, giveTheSameBitsTwice) { EXPECT_EQ(compareRepetition(recipe(), type(), backend(3)), ""); }

INSTANTIATE_TEST_SUITE_P(All, ThreadedOperators,
                         testing::ValuesIn(subjects([](const Subject& s) { return s.backend->hasThreads; })),
                         nameOfParameter);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ThreadedOperators);

bool multipliesMatrices(const Subject& subject) {
  const std::string& family = subject.recipe->family();
  return !subject.backend->matrixLibraries.empty() &&
         (family == "linear" || family == "linearCrossEntropy" || family == "newtonSchulz");
}

class DeviceOperators : public Operators {};

TEST_P(DeviceOperators, giveTheSameBitsTwice) { EXPECT_EQ(compareRepetition(recipe(), type(), backend()), ""); }

INSTANTIATE_TEST_SUITE_P(All, DeviceOperators, testing::ValuesIn(subjects([](const Subject& s) {
                           return isTested(s) && !s.backend->hasThreads;
                         })),
                         nameOfParameter);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceOperators);

class MatrixOperators : public Operators {};

TEST_P(MatrixOperators, giveTheSameByEveryMatrixLibrary) {
  for (const std::string& library : GetParam().backend->matrixLibraries) {
    try {
      EXPECT_EQ(compareSteps(recipe(), type(), backendFor(*GetParam().backend, 2, library)), "") << "with " << library;
    } catch (const base::Error& error) {
      // A build or processor may lack one of them.
      EXPECT_EQ(error.kind(), base::ErrorKind::usage) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MatrixOperators, testing::ValuesIn(subjects(multipliesMatrices)), nameOfParameter);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MatrixOperators);

class BackwardOperators : public Operators {};

TEST_P(BackwardOperators, fitTheForwardOperatorsOfTheSameBackend) {
  EXPECT_EQ(comparePass(recipe(), type(), backend()), "");
}

INSTANTIATE_TEST_SUITE_P(Gradients, BackwardOperators, testing::ValuesIn(subjects([](const Subject& s) {
                           return !s.backend->isReference && !s.recipe->derivatives.empty();
                         })),
                         nameOfParameter);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackwardOperators);

std::vector<const Case*> differentiableCases() {
  std::vector<const Case*> all;
  for (const Case& recipe : registry().cases) {
    if (!recipe.derivatives.empty()) all.push_back(&recipe);
  }
  return all;
}

class ReferenceGradients : public testing::TestWithParam<const Case*> {};

TEST_P(ReferenceGradients, areTheFiniteDifferencesOfTheForwardOperators) {
  EXPECT_EQ(checkDerivatives(*GetParam()), "");
}

std::string nameOfCase(const testing::TestParamInfo<const Case*>& info) { return info.param->name(); }

INSTANTIATE_TEST_SUITE_P(Gradients, ReferenceGradients, testing::ValuesIn(differentiableCases()), nameOfCase);

}  // namespace

}  // namespace tandem::kernels::test
