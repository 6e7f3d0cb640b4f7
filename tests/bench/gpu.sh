#!/usr/bin/env bash
# Everything that only a GPU can tell: correctness on it, and speed beside its ceilings. Prints Markdown.
#
#   tests/bench/gpu.sh [--peak TFLOPS] [--quick]
#
# --peak is the GPU's dense bfloat16 peak, for MFU (989 for H100 and H200 SXM, 312 for A100, 119 for GB10); without it, shares are
# of the matrix rate that is measured at the start of each run. --quick leaves the models of 0.5 B and 1.5 B parameters out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
peak=
models=(gpt2-124m qwen2-0.5b gpt2-1.5b)
while (($#)); do
    case $1 in
        --peak) peak=$2; shift 2 ;;
        --quick) models=(gpt2-124m); shift ;;
        *) echo "gpu.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv || { echo "gpu.sh: there is no GPU here" >&2; exit 2; }

jobscripts/install-deps.sh
mkdir -p build
cmake --preset cuda >build/cuda-configure.log || { cat build/cuda-configure.log; exit 1; }
cmake --build --preset cuda --target pretrain --target evaluate --target tokenize --target make-stories \
    --target operators_gpu_test --target golden_gpu_test
bin=build/cuda/bin tests=build/cuda/tests
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TANDEM_SOURCE_DIR=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

echo "## Operators against the reference, and the golden values"
"$tests/operators_gpu_test" --mode test --gtest_brief=1
"$tests/operators_gpu_test" --mode grad --gtest_brief=1
"$tests/golden_gpu_test" --gtest_brief=1
"$tests/operators_gpu_test" --mode support --backend cuda

echo "## Operators beside the ceilings"
"$tests/operators_gpu_test" --mode perf --backend cuda

echo "## Training, bfloat16, rows of 1024 tokens, 524288 tokens a step"
"$bin/make-stories" --bytes 30000000 >"$folder/stories.jsonl"
"$bin/tokenize" train --input "$folder/stories.jsonl" --vocab-size 4096 --pattern gpt2 --special '<|endoftext|>' --output "$folder/t.json"
"$bin/tokenize" encode --tokenizer "$folder/t.json" --input "$folder/stories.jsonl" --output "$folder/train.h5"
echo "| model | tokens/s | share of ${peak:-the measured matrix rate} |"
echo "|---|---|---|"
for model in "${models[@]}"; do
    "$bin/pretrain" --device cuda --model "data/models/$model.json" --data "$folder/train.h5" --output "$folder/$model" \
        --precision bf16 --batch-tokens 524288 --sequence-length 1024 --micro-batch 16 --steps 8 --keep 1 >"$folder/log" 2>&1 ||
        { cat "$folder/log"; exit 1; }
    python3 - "$folder/$model/metrics.jsonl" "$model" "${peak:-0}" <<'P'
import json, statistics, sys
steps = [json.loads(line) for line in open(sys.argv[1]) if '"evaluation"' not in line][2:]
tokens = statistics.median(step["tokens_per_second"] for step in steps)
flops = statistics.median(step["model_flops_per_second"] for step in steps)
peak = float(sys.argv[3]) * 1e12
share = flops / peak if peak else statistics.median(step["matrix_rate_share"] for step in steps)
print(f"| {sys.argv[2]} | {tokens:.0f} | {100 * share:.1f} % |")
P
done

echo "## Decoding, bfloat16"
"$bin/evaluate" generate --device cuda --precision bf16 --checkpoint "$folder/${models[0]}" --prompt "Once" --max-tokens 256 \
    --temperature 0 2>&1 | tail -3
