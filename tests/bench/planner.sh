#!/usr/bin/env bash
# Prints, for three small models on 4 and 8 ranks of this machine, what the planner predicts for every grid beside what a
# few steps on it take, and the grid that it would take beside the fastest. About half an hour on two cores; nothing else
# should run meanwhile.
#
#   tests/bench/planner.sh [STEPS [TURNS]]      3 and 2 by default
#
# Builds planner_bench in build/cpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$(mktemp -d /tmp/tandem-bench.XXXXXX)
trap 'rm -rf "$folder"' EXIT

[[ -f build/cpu/build.ninja ]] || cmake --preset cpu >/dev/null
cmake --build build/cpu --target planner_bench >/dev/null
sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' data/models/llama-5m.json >"$folder/llama-5m-untied.json"
for ranks in 4 8; do
    for model in data/models/gpt2-5.9m.json data/models/llama-10m.json "$folder/llama-5m-untied.json"; do
        OMP_NUM_THREADS=1 mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" \
            build/cpu/tests/planner_bench "$model" 16 128 "$@"
    done
done
