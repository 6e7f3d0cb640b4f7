#!/usr/bin/env bash
# Builds a preset with its tests and runs them.
#
#   tests/run.sh [--preset cpu|cuda|asan|tsan|coverage] [--fast | --memory | --only NAME] [--jobs N] [ctest's options, such as -R NAME or -L LABEL]
#
# --fast and --memory build and run only the tests of that label; --only builds one test program and runs its tests.
#
# Labels: fast (units, seconds), memory (parsers of foreign bytes, kernels), mpi (several ranks), integration (the executables chained), simt (CUDA on an emulated
# device), house (rules of the code).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=cpu
jobs=$(nproc)
options=()
target=all
while (($#)); do
    case $1 in
        --preset) preset=$2; shift 2 ;;
        --jobs) jobs=$2; shift 2 ;;
        --fast) target=fast_tests; options+=(-L fast); shift ;;
        --memory) target=memory_tests; options+=(-L memory); shift ;;
        --only) target=$2; options+=(-R "^$2\\."); shift 2 ;;
        *) options+=("$1"); shift ;;
    esac
done

jobscripts/install-deps.sh
log=build/$preset-configure.log
mkdir -p build
cmake --preset "$preset" >"$log" || { cat "$log"; exit 1; }
cmake --build --preset "$preset" --parallel "$jobs" --target "$target"
# Starting programs and exchanging are mostly waiting: two more than there are processors.
ctest --preset "$preset" --parallel $((jobs + 2)) --no-tests=error "${options[@]}"
