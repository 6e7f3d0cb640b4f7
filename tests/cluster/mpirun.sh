#!/usr/bin/env bash
# The mpirun scripts on this machine: the chain, with pretrain started again as often as its time is up; a no-go; a run that is told to
# stop; and profiles that cannot be meant.
#
#   tests/cluster/mpirun.sh [--bin FOLDER]       (fixture.sh explains the options)
#
# Takes half a minute. Leaves nothing behind; the logs are printed when it fails.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
source "$tree/tests/cluster/fixture.sh"
read_options "$@"

folder=$(mktemp -d /tmp/tandem-mpirun.XXXXXX)
failed=1
finish() {
    [[ $failed == 0 ]] || tail -n 60 "$folder"/*.log || true
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' INT TERM

make_corpus >"$folder/corpus.jsonl"
make_model >"$folder/model.json"

# make_profile NAME PRETRAIN_OPTION...
make_profile() {
    local name=$1
    shift
    cat >"$folder/$name.env" <<PROFILE
bin=$bin
run=$folder/$name
corpus=($folder/corpus.jsonl)
train_tokenizer_options=(--vocab-size 320 --pattern gpt2)
encode_options=(--val-fraction 0.1)
preflight_options=(--quick --load-seconds 0.05 --trial-steps 2)
preflight_policy=warn # this machine may be busy
pretrain_options=(--model $folder/model.json --batch-tokens 8192 --sequence-length 32 --learning-rate 3e-3
    --checkpoint-every 20 --keep 0 $*)
loss_options=(--sequence-length 32 --batch 4)
generate_options=(--prompt "the old" --max-tokens 12)
exports=(model.gguf huggingface)
ranks_per_node=2
interfaces=lo
PROFILE
}

test_the_chain_starts_pretrain_again_when_its_time_is_up() {
    make_profile chain --steps 200 --time-limit 2s
    "$tree/jobscripts/mpirun/chain.sh" "$folder/chain.env" >"$folder/chain.log" 2>&1 || fail "chain.sh: exit code $?"
    grep -q 'stopped at step' "$folder/chain.log" || fail "pretrain was done before its time was up"
    expect_every_step_once "$folder/chain" 200
    [[ -s $folder/chain/evaluation.json && -s $folder/chain/samples.json ]] || fail "evaluate has left nothing"
    [[ -s $folder/chain/model.gguf && -s $folder/chain/huggingface/model.safetensors ]] || fail "convert has left nothing"
    echo "passed: the chain starts pretrain again when its time is up"
}

test_the_chain_is_printed_and_seeds_are_chains_one_after_the_other() {
    local plan code=0 chain=$tree/jobscripts/mpirun/chain.sh
    make_profile seeds --steps 3
    echo 'exports=()' >>"$folder/seeds.env"
    plan=$(TANDEM_RECIPE=r.toml "$chain" --dry-run --seeds 4-5 --from pretrain "$folder/seeds.env")
    [[ $(grep -c '^TANDEM_RECIPE=r.toml TANDEM_SEED=[45] .*/mpirun/[a-z]*.sh ' <<<"$plan") == 8 ]] ||
        fail "--dry-run does not print four stages for each of two seeds: $plan"
    [[ ! -e $folder/seeds ]] || fail "--dry-run has begun something"
    mkdir "$folder/seeds"
    cp "$folder/chain"/{tokenizer.json,train.h5,val.h5} "$folder/seeds"
    "$chain" --seeds 4,5 --from pretrain "$folder/seeds.env" >"$folder/seeds.log" 2>&1 || fail "two seeds: exit code $?"
    ! cmp -s "$folder"/seeds/seed-{4,5}/evaluation.json || fail "both seeds gave the same"
    "$chain" --seeds 4+5 "$folder/seeds.env" >"$folder/refused.log" 2>&1 || code=$?
    ((code == 2)) || fail "a list of seeds that is none gave exit code $code"
    echo "passed: the chain is printed, and seeds are chains one after the other"
}

test_a_run_that_is_told_to_stop_saves_and_is_not_started_again() {
    make_profile told --steps 1000000
    cp -r "$folder/chain" "$folder/told"
    rm -r "$folder/told/model"
    "$tree/jobscripts/mpirun/pretrain.sh" "$folder/told.env" >"$folder/told.log" 2>&1 &
    local training=$! code=0 saved
    await_checkpoint told 60
    kill -TERM "$training"
    wait "$training" || code=$?
    ((code == 75)) || fail "pretrain.sh gave $code, not 75, when told to stop"
    saved=$(newest_checkpoint told)
    [[ $(grep -c '"step_seconds"' "$folder/told/model/metrics.jsonl") == "$saved" ]] ||
        fail "the last step was not saved, but step $saved"
    [[ $(grep -c ' step 1/' "$folder/told.log") == 1 ]] || fail "it was started again"
    echo "passed: a run that is told to stop saves and is not started again"
}

expect_refused() { # TEXT LINE...    a profile with these lines added
    local text=$1 code=0
    shift
    make_profile refused --steps 1
    printf '%s\n' "$@" >>"$folder/refused.env"
    "$tree/jobscripts/mpirun/pretrain.sh" "$folder/refused.env" >"$folder/refused.log" 2>&1 || code=$?
    ((code == 2)) || fail "a profile with '$*' gave exit code $code, not 2"
    grep -qF -- "$text" "$folder/refused.log" || fail "a profile with '$*' was not refused with '$text'"
}

test_profiles_that_cannot_be_meant_are_refused() {
    expect_refused "'thread' is no setting" 'thread=4'
    expect_refused "threads is 'many'" 'threads=many'
    expect_refused 'must be longer than watchdog' 'watchdog=900'
    expect_refused 'which has no executable pretrain' 'bin=nowhere'
    expect_refused 'run, the folder for what the chain makes, is not set' 'run='
    echo "passed: profiles that cannot be meant are refused"
}

test_a_no_go_stops_the_chain_before_anything_is_trained() {
    make_profile unfit --steps 10 --micro-batch 1000000000 # a plan that no memory holds
    sed -i 's/--batch-tokens 8192/--batch-tokens 64000000000/; s/preflight_policy=.*/preflight_policy=stop/' "$folder/unfit.env"
    cp -r "$folder/chain" "$folder/unfit"
    rm -r "$folder/unfit/model"
    local code=0
    "$tree/jobscripts/mpirun/chain.sh" "$folder/unfit.env" >"$folder/unfit.log" 2>&1 || code=$?
    ((code == 4)) || fail "the chain gave $code, not 4, after a no-go"
    grep -q '^no-go *memory of the host' "$folder/unfit/preflight.txt" || fail "preflight.txt does not say why"
    [[ ! -e $folder/unfit/model ]] || fail "it was trained all the same"
    echo "passed: a no-go stops the chain before anything is trained"
}

test_the_chain_starts_pretrain_again_when_its_time_is_up
test_a_no_go_stops_the_chain_before_anything_is_trained
test_the_chain_is_printed_and_seeds_are_chains_one_after_the_other
test_a_run_that_is_told_to_stop_saves_and_is_not_started_again
test_profiles_that_cannot_be_meant_are_refused
failed=0
