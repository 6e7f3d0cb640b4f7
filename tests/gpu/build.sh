#!/usr/bin/env bash
# Compiles everything for GPUs (preset cuda, without the tests), and looks at what the programs do on this machine: where
# there is no GPU, they have to say so. Says that it does nothing where there is no CUDA compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    echo "tests/gpu/build.sh: there is no CUDA compiler here; the build for GPUs is not tried"
    exit 0
fi
cmake --preset cuda -DTANDEM_BUILD_TESTS=OFF >build/cuda-configure.log || { cat build/cuda-configure.log; exit 1; }
cmake --build --preset cuda --parallel "$(nproc)"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
pretrain=build/cuda/bin/pretrain
"$pretrain" --version | grep -E '^CUDA +1[3-9]\.' || { echo "--version does not name the version of CUDA"; exit 1; }
if nvidia-smi >/dev/null 2>&1; then
    exit 0 # tests/bench/gpu.sh is for this machine
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for sentence in {1..400}; do echo "Story $sentence: the fox meets $((sentence % 7)) hens and goes home."; done >"$folder/text.txt"
build/cuda/bin/tokenize train --input "$folder/text.txt" --vocab-size 300 --pattern gpt2 --special '<|endoftext|>' \
    --output "$folder/tokenizer.json" 2>"$folder/log"
build/cuda/bin/tokenize encode --tokenizer "$folder/tokenizer.json" --input "$folder/text.txt" \
    --output "$folder/train.h5" 2>"$folder/log"
options=(--model data/models/llama-5m.json --data "$folder/train.h5" --batch-tokens 256 --sequence-length 64 --steps 1)

code=0
said=$("$pretrain" --device cuda "${options[@]}" --output "$folder/run" 2>&1) || code=$?
[[ $code == 2 && $said == *"--device cuda: no NVIDIA driver"* ]] || { echo "--device cuda ended with $code: $said"; exit 1; }
said=$("$pretrain" --device auto "${options[@]}" --output "$folder/run" 2>&1) || { echo "--device auto failed: $said"; exit 1; }
[[ $said == *"--device auto takes the CPU: no NVIDIA driver"* ]] || { echo "--device auto does not say why: $said"; exit 1; }
echo "tests/gpu/build.sh: without a GPU --device cuda is refused, and --device auto takes the CPU"
