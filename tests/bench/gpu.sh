#!/usr/bin/env bash
# Everything that only a GPU can tell: correctness on it, and speed beside its ceilings. Prints Markdown.
#
#   tests/bench/gpu.sh [--peak TFLOPS] [--quick] [--micro-batch ROWS] [--rehearse BUILD]
#
# --peak is the GPU's dense bfloat16 peak, for MFU (989 for H100 and H200 SXM, 312 for A100, 119 for GB10); without it, shares are
# of the matrix rate that is measured at the start of each run. --quick leaves the models of 0.5 B and 1.5 B parameters out.
# --micro-batch is for GPUs of less than 96 GB (16 rows otherwise). --rehearse goes through every line of this script
# with the CPU's programs of a build folder and a small model: what it prints then means nothing but that the script works.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
peak= rehearsal= rows=16
models=(gpt2-124m qwen2-0.5b gpt2-1.5b)
while (($#)); do
    case $1 in
        --peak) peak=$2; shift 2 ;;
        --quick) models=(gpt2-124m); shift ;;
        --micro-batch) rows=$2; shift 2 ;;
        --rehearse) rehearsal=$2; shift 2 ;;
        *) echo "gpu.sh: unknown option $1" >&2; exit 2 ;;
    esac
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TANDEM_SOURCE_DIR=$PWD
if [[ -n $rehearsal ]]; then
    bin=$rehearsal/bin tests=$rehearsal/tests device=cpu suffix=test models=(gpt2-5.9m)
    step_tokens=512 length=128 rows=2 corpus=300000 answer=16
    few=--gtest_filter=*embedding* # of the harness, which ctest runs whole
else
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv || { echo "gpu.sh: there is no GPU here" >&2; exit 2; }
    jobscripts/install-deps.sh
    mkdir -p build
    cmake --preset cuda >build/cuda-configure.log || { cat build/cuda-configure.log; exit 1; }
    cmake --build --preset cuda --target pretrain evaluate tokenize make-stories operators_gpu_test fp8_linear_gpu_test golden_gpu_test
    bin=build/cuda/bin tests=build/cuda/tests device=cuda suffix=gpu_test
    step_tokens=524288 length=1024 corpus=30000000 answer=256
    few=
fi
harness=$tests/operators_$suffix
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Keeps going after a failure, so that a wrong operator does not hide the rest; says so in the end.
failed=()
try() {
    local code=0
    "$@" || code=$?
    ((code == 0)) || { failed+=("$*"); echo "**failed with $code: $***"; }
}

echo "## Operators against the reference, and the golden values"
echo '```'
if [[ -n $few ]]; then
    try "$harness" "$few" --gtest_brief=1
else
    try "$harness" --mode test --gtest_brief=1
    try "$harness" --mode grad --gtest_brief=1
fi
try "$tests/fp8_linear_$suffix" --gtest_brief=1
try "$tests/golden_$suffix" --gtest_brief=1
try "$harness" --mode support --backend "$device"
echo '```'

echo "## Operators beside the ceilings"
echo '```'
try "$harness" --mode perf --backend "$device" ${rehearsal:+--operator Cast} >"$folder/perf"
cat "$folder/perf"
echo '```'

echo "## Attention by cuDNN, by the own kernels on the tensor cores, and by the plain ones"
echo '```'
for path in cudnn mma reference; do
    try env TANDEM_TEST_ATTENTION=$path "$harness" --mode perf --backend "$device" --operator Attention >"$folder/attention-$path"
    grep -v '^ceilings' "$folder/attention-$path" || true
done
echo '```'
python3 - "$folder" <<'P'
import pathlib, re, sys
rates = {}
for path in ("cudnn", "mma"):
    for line in (pathlib.Path(sys.argv[1]) / f"attention-{path}").read_text().splitlines():  # not over a KV cache
        match = re.match(r"(Attention(?:Backward)?) +(\S+) +(bfloat16) .* ([0-9.]+) GFLOP/s", line)
        if match:
            rates.setdefault(match.group(1, 2), {})[path] = float(match.group(4))
print("| operator | case | cuDNN, TFLOP/s | mma, TFLOP/s | mma / cuDNN |\n|---|---|---|---|---|")
for (operator, case), both in rates.items():
    cudnn, mma = both.get("cudnn"), both.get("mma")
    share = f"{100 * mma / cudnn:.0f} %" if cudnn and mma else "-"
    print(f"| {operator} | {case} | {cudnn / 1e3 if cudnn else 0:.1f} | {mma / 1e3 if mma else 0:.1f} | {share} |")
P

echo "## Training, bfloat16, rows of $length tokens, $step_tokens tokens a step"
"$bin/make-stories" --bytes "$corpus" >"$folder/stories.jsonl"
{
    "$bin/tokenize" train --input "$folder/stories.jsonl" --vocab-size 4096 --pattern gpt2 --special '<|endoftext|>' --output "$folder/t.json"
    "$bin/tokenize" encode --tokenizer "$folder/t.json" --input "$folder/stories.jsonl" --output "$folder/train.h5"
} >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
echo "| model | tokens/s | share of ${peak:-the measured matrix rate}${peak:+ TFLOP/s} | attention |"
echo "|---|---|---|---|"
for model in "${models[@]}"; do
    for fp8 in "" --fp8; do
        run=$folder/$model$fp8
        if ! "$bin/pretrain" --device "$device" --model "data/models/$model.json" --data "$folder/train.h5" --output "$run" \
            --precision bf16 $fp8 --batch-tokens "$step_tokens" --sequence-length "$length" --micro-batch "$rows" --steps 8 --keep 1 \
            >"$folder/log" 2>&1; then
            echo "| $model $fp8 | $(tail -1 "$folder/log" | tr '|' '/') | - | - |"
            grep -q 'cannot run here' "$folder/log" || failed+=("pretrain $model $fp8") # an old GPU has no 8-bit floats
            continue
        fi
        python3 - "$run" "$model $fp8" "${peak:-0}" <<'P'
import json, pathlib, statistics, sys
run = pathlib.Path(sys.argv[1])
lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
steps = [line for line in lines if "evaluation" not in line][2:]
tokens = statistics.median(step["tokens_per_second"] for step in steps)
flops = statistics.median(step["model_flops_per_second"] for step in steps)
peak = float(sys.argv[3]) * 1e12
share = flops / peak if peak else statistics.median(step["matrix_rate_share"] for step in steps)
attention = json.loads((run / "run.json").read_text()).get("attention", "the CPU's")
print(f"| {sys.argv[2]} | {tokens:.0f} | {100 * share:.1f} % | {attention} |")
P
    done
done

echo "## Decoding one sequence, bfloat16"
model=${models[0]}
parameters=$("$bin/pretrain" --dry-run --model "data/models/$model.json" --batch-tokens "$length" --sequence-length "$length" |
    sed -n 's/.* model of \([0-9]*\) parameters.*/\1/p')
"$bin/evaluate" generate --json --device "$device" --precision bf16 --checkpoint "$folder/$model" --prompt "Once" \
    --max-tokens "$answer" --ignore-end --temperature 0 >"$folder/answer.json" 2>"$folder/log" || { cat "$folder/log"; exit 1; }
python3 - "$folder" "$parameters" <<'P'
import json, pathlib, re, sys
folder = pathlib.Path(sys.argv[1])
answer = json.loads((folder / "answer.json").read_text())[0]
rate = answer["generated_tokens"] / answer["decode_seconds"]
copy = float(re.search(r"copy ([0-9.]+) GB/s", (folder / "perf").read_text()).group(1))
weights = 2e-9 * float(sys.argv[2])  # GB that a token reads at least
print(f"{rate:.0f} tokens/s; the weights alone are {rate * weights:.1f} GB/s, {100 * rate * weights / copy:.0f} % of a copy's {copy:.0f} GB/s")
P
((${#failed[@]} == 0)) || { printf '\n**failed:** %s\n' "${failed[@]}"; exit 1; }
