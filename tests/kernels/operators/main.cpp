// The operator harness: every operator of the kernel contract on every backend, in four modes.
//
//   operators_test --mode test      against the reference: odd shapes, unaligned data, threads, NaN  (GoogleTest)
//   operators_test --mode grad      gradients: finite differences of the reference, and each backend's own passes
//   operators_test --mode perf      GFLOP/s and GB/s beside the measured ceilings  [--backend B] [--operator O]
//   [--threads N] operators_test --mode support   the table of operators, storage types and backends operators_test
//   test and grad; all flags of GoogleTest work
//
// To add an operator: write a file that fills `Registry` with cases of it (operator_case.h shows how;
// embedding_cases.cpp is the shortest), declare its function in operator_case.h and call it in operator_case.cpp. A
// case names its operands, draws their contents, and calls the operator; a tolerance and the FLOPs are numbers beside
// it, the bytes are counted from what it asks for. All tests above then apply to it. To add a backend: an entry in
// backends.cpp.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/kernels/operators/modes.h"

namespace {

struct Arguments {
  std::string mode;
  tandem::kernels::test::ModeOptions options;
};

[[noreturn]] void refuse(const std::string& message) {
  std::fprintf(stderr, "operators_test: %s\n", message.c_str());
  std::exit(2);
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) refuse("the flag " + flag + " wants a value");
    const std::string value = argv[i + 1];
    if (flag == "--mode") {
      arguments.mode = value;
    } else if (flag == "--backend") {
      arguments.options.backend = value;
    } else if (flag == "--operator") {
      arguments.options.operatorName = value;
    } else if (flag == "--threads") {
      arguments.options.threads = std::atoi(value.c_str());
    } else {
      refuse("no flag is called " + flag);
    }
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  const bool filtered = [&] {
    for (int i = 1; i < argc; ++i) {
      if (std::string(argv[i]).starts_with("--gtest_filter")) return true;
    }
    return false;
  }();
  testing::InitGoogleTest(&argc, argv);
  const Arguments arguments = parse(argc, argv);
  if (arguments.mode == "perf") {
    tandem::kernels::test::printPerformance(arguments.options);
    return 0;
  }
  if (arguments.mode == "support") {
    tandem::kernels::test::printSupport(arguments.options);
    return 0;
  }
  if (arguments.mode == "test" || arguments.mode == "grad") {
    if (filtered) refuse("--mode " + arguments.mode + " is a filter itself; give --gtest_filter alone");
    GTEST_FLAG_SET(filter, arguments.mode == "test" ? "-Gradients/*" : "Gradients/*");
  } else if (!arguments.mode.empty()) {
    refuse("the mode is '" + arguments.mode + "'; it can be test, grad, perf or support");
  }
  return RUN_ALL_TESTS();
}
