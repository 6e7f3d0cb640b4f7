#!/usr/bin/env bash
# How much of the exchanges between two hosts hides behind computing: pretrain on two network namespaces of this machine
# with a link of a given rate, with --overlap off and on in turns. Needs root.
#
#   tests/bench/overlap.sh [--rate RATE] [--steps N] [--turns N] [--batch-tokens N...] [-- OPTION_OF_PRETRAIN...]
#
# 1gbit, 8 steps, 2 turns, and 512, 1024 and 2048 tokens a step by default. Without overlap, a step is what it computes and
# then what its exchanges take; the share of these that hides is what a step with overlap is shorter by. One rank with one
# thread on each host. Builds pretrain and tokenize in build/cpu where they are missing. Leaves nothing behind.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
source "$tree/tests/cluster/fixture.sh"
source "$tree/tests/cluster/network_hosts.sh"
rate=1gbit
steps=8
turns=2
batches=()
while (($#)); do
    case $1 in
        --rate) rate=$2; shift 2 ;;
        --steps) steps=$2; shift 2 ;;
        --turns) turns=$2; shift 2 ;;
        --batch-tokens) shift; while (($#)) && [[ $1 != -* ]]; do batches+=("$1"); shift; done ;;
        --) shift; break ;;
        *) echo "usage: $0 [--rate RATE] [--steps N] [--turns N] [--batch-tokens N...] [-- OPTION...]" >&2; exit 2 ;;
    esac
done
((${#batches[@]})) || batches=(512 1024 2048)
bin=$tree/build/cpu/bin
[[ -x $bin/pretrain && -x $bin/tokenize ]] || ninja -C "$tree/build/cpu" pretrain tokenize >/dev/null

export TANDEM_HOSTS=bench$$- # for host_agent.sh
subnet=10.86.$(($$ % 250))
folder=$(mktemp -d /tmp/tandem-bench.XXXXXX)
finish() {
    hosts_down "$TANDEM_HOSTS"
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' INT TERM

# 12.7 M parameters: 50 MB of gradients, and of weights.
cat >"$folder/model.json" <<'MODEL'
{"model_type": "llama", "vocab_size": 320, "hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4,
 "num_key_value_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 256, "tie_word_embeddings": true}
MODEL
make_corpus >"$folder/corpus.jsonl"
"$bin/tokenize" train --input "$folder/corpus.jsonl" --vocab-size 320 --pattern gpt2 --output "$folder/tokenizer.json" \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
"$bin/tokenize" encode --tokenizer "$folder/tokenizer.json" --input "$folder/corpus.jsonl" --output "$folder/train.h5" \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }

hosts_up "$TANDEM_HOSTS" "$subnet"
limit_links "$TANDEM_HOSTS" "$rate"
printf '%s slots=1\n' "$subnet.1" "$subnet.2" >"$folder/hosts"

train() { # OUTPUT OVERLAP TOKENS OPTION...
    local output=$1 overlap=$2 tokens=$3
    shift 3
    mpirun_on_hosts "$TANDEM_HOSTS" "$subnet" "$folder/hosts" "$bin/pretrain" \
        --model "$folder/model.json" --data "$folder/train.h5" --output "$output" --steps "$steps" \
        --batch-tokens "$tokens" --sequence-length 256 --threads 1 --resume never --overlap "$overlap" "$@" \
        >"$folder/log" 2>&1 </dev/null || { cat "$folder/log"; exit 1; }
}

echo "two hosts, one rank each, $rate between them; medians of $turns turns of $steps steps, without the first two"
for tokens in "${batches[@]}"; do
    for ((turn = 0; turn < turns; ++turn)); do
        for overlap in off on; do
            train "$folder/$tokens-$overlap-$turn" "$overlap" "$tokens" "$@"
            mv "$folder/$tokens-$overlap-$turn/metrics.jsonl" "$folder/$tokens-$overlap-$turn.jsonl"
            rm -r "${folder:?}/$tokens-$overlap-$turn"
        done
    done
done
python3 - "$folder" "$turns" "${batches[@]}" <<'PYTHON'
import json, pathlib, statistics, sys

folder, turns, batches = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]


def median(tokens, overlap, field):
    values = []
    for turn in range(turns):
        lines = [json.loads(line) for line in open(folder / f"{tokens}-{overlap}-{turn}.jsonl")]
        values += [line[field] for line in lines if "evaluation" not in line and line["step"] > 2]
    return statistics.median(values)


print(f"{'tokens':>8}{'compute':>10}{'exchange':>10}{'step, off':>11}{'step, on':>10}{'hidden':>9}"
      f"{'step / max(compute, exchange)':>31}")
for tokens in batches:
    compute, exchange = (median(tokens, "off", f"{name}_seconds") for name in ("compute", "communication"))
    off, on = (median(tokens, overlap, "step_seconds") for overlap in ("off", "on"))
    print(f"{tokens:>8}{1e3 * compute:>7.0f} ms{1e3 * exchange:>7.0f} ms{1e3 * off:>8.0f} ms{1e3 * on:>7.0f} ms"
          f"{100 * (off - on) / exchange:>7.0f} %{on / max(compute, exchange):>31.2f}")
PYTHON
