#!/usr/bin/env bash
# Makes the pictures in docs/: the page of a real run, which is stopped once and goes on, and that of two runs side by side
# (the second with another learning rate). Two ranks on this machine; some minutes on two cores.
#
#   tests/browser/pictures.sh [--bin FOLDER] [--steps N] [--model FILE] [OUTPUT]       into OUTPUT, or docs/
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
bin=$tree/build/cpu/bin steps=240 model=$tree/data/models/llama-5m.json
while (($# > 1)); do
    case $1 in
        --bin) bin=$(realpath "$2"); shift 2 ;;
        --steps) steps=$2; shift 2 ;;
        --model) model=$(realpath "$2"); shift 2 ;;
        *) echo "usage: $0 [--bin FOLDER] [--steps N] [--model FILE] [OUTPUT]" >&2; exit 2 ;;
    esac
done
output=$(realpath "${1:-$tree/docs}")
folder=$(mktemp -d /tmp/tandem-pictures.XXXXXX)
trap 'rm -rf "$folder"' EXIT
cd "$folder" # so that the pages name the runs without it
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1

"$bin/make-stories" --bytes 2000000 >stories.jsonl
"$bin/tokenize" train --input stories.jsonl --vocab-size 1536 --pattern gpt2 --output tokenizer.json
"$bin/tokenize" encode --tokenizer tokenizer.json --input stories.jsonl --val-fraction 0.02 --output train.h5 --val-output val.h5

# train NAME OPTION...
train() {
    local name=$1
    shift
    mpirun -n 2 --oversubscribe --bind-to none "$bin/pretrain" --model "$model" --data train.h5 \
        --val val.h5 --output "runs/$name" --batch-tokens 2048 --sequence-length 256 --warmup-steps $((steps / 10)) \
        --steps "$steps" --evaluate-every $((steps / 8)) --evaluate-tokens 20000 --checkpoint-every $((steps / 8)) \
        --gradient-norm-groups --sample-prompt "Once upon a time there was a girl named Rosa" --sample-tokens 40 "$@"
}
code=0
train first --learning-rate 1e-3 --time-limit 20s || code=$?
((code == 75)) || { echo "the run was to be stopped once, and gave $code" >&2; exit 1; }
train first --learning-rate 1e-3
train second --learning-rate 3e-4 --seed 2
"$bin/evaluate" compare runs/first runs/second --output compare.html
cp runs/first/report.html report.html
for page in report compare; do "$tree/tests/browser/screenshots.sh" "$page.html" "$output"; done
