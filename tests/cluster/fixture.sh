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

# For tests with mpirun on the two hosts of network_hosts.sh, which is to be sourced first. The test sets failed=0 when all
# has passed.
#
#   begin_on_two_hosts NAME               sets folder, subnet and TANDEM_HOSTS, makes corpus and model, and takes all down
#                                         again at the end, printing the logs where it fails
#   make_profile_of_two_hosts LINE...     profile.env with these lines beside what all such tests need
#   stage_on_host_1 STAGE                 mpirun/STAGE.sh with that profile; its output is added to STAGE.log
begin_on_two_hosts() {
    folder=$(mktemp -d "/tmp/tandem-$1.XXXXXX")
    export TANDEM_HOSTS=tandem$$- # for host_agent.sh
    subnet=10.83.$(($$ % 250))    # of namespaces of its own
    failed=1
    trap end_of_two_hosts EXIT
    trap 'exit 1' INT TERM
    make_corpus >"$folder/corpus.jsonl"
    make_model >"$folder/model.json"
    mkdir "$folder/run"
    printf '%s slots=1\n' "$subnet.1" "$subnet.2" >"$folder/hosts"
    hosts_up "$TANDEM_HOSTS" "$subnet"
}

end_of_two_hosts() {
    hosts_down "$TANDEM_HOSTS"
    [[ $failed == 0 ]] || tail -n 60 "$folder"/*.log || true
    rm -rf "$folder"
}

make_profile_of_two_hosts() {
    cat >"$folder/profile.env" <<PROFILE
bin=$bin
run=$folder/run
corpus=($folder/corpus.jsonl)
train_tokenizer_options=(--vocab-size 320 --pattern gpt2)
encode_options=(--val-fraction 0.1)
nodes=2
hostfile=$folder/hosts
interfaces=$subnet.0/24
mpirun_options=(--mca plm_rsh_agent $tree/tests/cluster/host_agent.sh)
PROFILE
    printf '%s\n' "$@" >>"$folder/profile.env"
}

stage_on_host_1() {
    on_host "$TANDEM_HOSTS" 1 "$tree/jobscripts/mpirun/$1.sh" "$folder/profile.env" >>"$folder/$1.log" 2>&1 </dev/null
}
