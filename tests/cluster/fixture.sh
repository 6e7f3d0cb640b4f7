# shellcheck shell=bash
# What the tests of the job scripts share: their options, a small corpus and model, and checks of a run. To be sourced, with
# tree set to the root of the source tree.
#
# Options of each test:
#   --bin FOLDER     has the executables; build/cpu/bin where none is given
#   --if-asked       skips (exit code 77) unless TANDEM_CLUSTER_TESTS=1 is in the environment, for ctest
#
# A test sets folder, below which all of its files are.
#
# shellcheck disable=SC2154  # tree and folder

# Sets bin.
read_options() {
    bin=$tree/build/cpu/bin
    while (($#)); do
        case $1 in
            --bin) bin=$(realpath "$2"); shift 2 ;;
            --if-asked)
                shift
                if [[ ${TANDEM_CLUSTER_TESTS:-0} != 1 ]]; then
                    echo "skipped: it sets up hosts or daemons on this machine; set TANDEM_CLUSTER_TESTS=1 to run it"
                    exit 77
                fi
                ;;
            *) echo "usage: $0 [--bin FOLDER] [--if-asked]" >&2; exit 2 ;;
        esac
    done
    local program
    for program in tokenize pretrain evaluate checkpoint-convert; do
        [[ -x $bin/$program ]] || { echo "$bin has no $program; build first, or give --bin" >&2; exit 2; }
    done
}

# For namespaces and daemons.
need_root_and_slurm() {
    ((EUID == 0)) || { echo "$0: namespaces and daemons need root" >&2; exit 2; }
    "$tree/jobscripts/install-deps.sh" --cluster
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

make_corpus() {
    awk 'BEGIN {
        srand(7)
        words = split("a river the old house stone night walks and sees green light under every door wind quiet horse", word, " ")
        for (document = 0; document < 300; ++document) {
            text = word[1 + int(rand() * words)]
            for (i = int(20 + 60 * rand()); i > 0; --i) text = text " " word[1 + int(rand() * words)]
            printf "{\"text\": \"%s.\"}\n", text
        }
    }'
}

make_model() {
    cat <<'MODEL'
{"model_type": "llama", "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": true}
MODEL
}

# expect_every_step_once RUN STEPS
expect_every_step_once() {
    python3 - "$1/model/metrics.jsonl" "$2" <<'PYTHON' || fail "the metrics of $1"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
steps = [line["step"] for line in lines if "evaluation" not in line]
assert steps == list(range(1, int(sys.argv[2]) + 1)), f"not every step once: {steps}"
assert lines[-1]["evaluation"] == "val.h5", lines[-1]
first, last = (line["loss"] for line in (lines[0], lines[-1]))
assert last < first - 1, f"nothing was learnt: loss {first}, then {last}"
PYTHON
}

newest_checkpoint() { # RUN
    [[ -d $folder/$1/model/checkpoints ]] || return 0
    find "$folder/$1/model/checkpoints" -maxdepth 1 -name 'step-*' ! -name '*.partial' -printf '%f\n' |
        sort | tail -n 1 | sed 's/step-0*//'
}

# Waits until the run has saved a step after the newest one.
await_checkpoint() { # RUN SECONDS
    local before end=$((SECONDS + $2))
    before=$(newest_checkpoint "$1")
    while [[ $(newest_checkpoint "$1") == "$before" ]]; do
        ((SECONDS < end)) || fail "$1 saved nothing after step ${before:-0} for $2 s"
        sleep 0.2
    done
}
