#!/usr/bin/env bash
# From nothing to a small chat model, on this machine: installs, builds, makes a corpus of stories and of conversations,
# then
#   tokenize -> pretrain (two ranks) -> finetune -> evaluate
# About ten minutes on two cores, building included. Run it again and it goes on where it stopped.
#
#   jobscripts/quickstart.sh [RUN_FOLDER]        RUN_FOLDER is runs/quickstart where none is given
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
run=${1:-runs/quickstart}

step() { printf '\n== %s\n' "$*"; }

step "installing and building"
jobscripts/install-deps.sh
mkdir -p build "$run"
cmake --preset cpu -B build/quickstart -DTANDEM_BUILD_TESTS=OFF >build/quickstart-configure.log ||
    { cat build/quickstart-configure.log; exit 1; }
cmake --build build/quickstart --parallel "$(nproc)"
bin=build/quickstart/bin

source jobscripts/mpirun/launch.sh

step "writing stories and training a tokenizer on them"
[[ -s $run/stories.jsonl ]] || { "$bin/make-stories" --bytes 3000000 >"$run/stories.partial"; mv "$run/stories.partial" "$run/stories.jsonl"; }
[[ -s $run/tokenizer.json ]] ||
    launch 2 "$bin/tokenize" train --input "$run/stories.jsonl" --text-key text --vocab-size 1536 --pattern gpt2 \
        --special '<|endoftext|>' --output "$run/tokenizer.json"
[[ -s $run/train.h5 && -s $run/val.h5 ]] ||
    launch 2 "$bin/tokenize" encode --tokenizer "$run/tokenizer.json" --input "$run/stories.jsonl" --text-key text \
        --output "$run/train.h5" --val-fraction 0.02 --val-output "$run/val.h5"

step "training a model of five million parameters on two ranks"
launch 2 "$bin/pretrain" --config data/recipes/quickstart.toml --data "$run/train.h5" --val "$run/val.h5" --output "$run/model"

step "measuring it"
launch 2 "$bin/evaluate" loss --checkpoint "$run/model" --data "$run/val.h5" --sequence-length 256 --batch 8

step "letting it write"
launch 1 "$bin/evaluate" generate --checkpoint "$run/model" --prompt "Once upon a time there was a girl named Rosa" \
    --max-tokens 120 --temperature 0.7 --top-p 0.95 --seed 5

step "teaching it conversations"
for part in train test; do
    [[ -s $run/chat-$part.jsonl ]] || "$bin/make-conversations" --part "$part" >"$run/chat-$part.jsonl"
done
questions=(--task data/tasks/conversations.json data/tasks/conversations-written.json --chat --chat-template tandem)
[[ -s $run/questions-before.txt ]] || {
    launch 2 "$bin/evaluate" tasks --checkpoint "$run/model" "${questions[@]}" >"$run/questions-before.partial"
    mv "$run/questions-before.partial" "$run/questions-before.txt"
}
launch 2 "$bin/finetune" --config data/recipes/quickstart-chat.toml --checkpoint "$run/model" --data "$run/chat-train.jsonl" \
    --val "$run/chat-test.jsonl" --output "$run/chat"

step "asking it questions that it has not been taught, before and after"
cat "$run/questions-before.txt"
launch 2 "$bin/evaluate" tasks --checkpoint "$run/chat" "${questions[@]}"

step "asking it"
printf '%s\n' "Who are you?" "What is 2 plus 3?" "How do you spell star?" "Who is Rosa?" |
    "$bin/evaluate" chat --checkpoint "$run/chat" --temperature 0
echo "go on by: $bin/evaluate chat --checkpoint $run/chat"
