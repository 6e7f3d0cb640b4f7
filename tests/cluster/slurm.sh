#!/usr/bin/env bash
# The Slurm job scripts on a real Slurm of two nodes, both on this machine, with the real executables:
#
#   1  the chain tokenize -> pretrain -> evaluate; pretrain is queued again by its time limit, and all ends by itself
#   2  a job that fails the same way again and again is given up, and the jobs that wait for it are cancelled
#   3  a run is warned by USR1, then loses a node that Slurm notices first, has it again, then loses it so that the ranks
#      notice first; it goes on by itself each time, from its newest checkpoint, on the nodes that there are
#   4  a job that is cancelled stays so
#   5  a job submitted by hand works, but not with other resources than the profile's
#   6  a node that preflight finds bad is left out from then on, and a job that then has too few is given up; runs of
#      several seeds are array jobs and share their tokens
#   7  a run that a more urgent job drives out goes on afterwards; one that fills its disk fails, and goes on with more room
#   8  conversations: finetuning in the chain
#
#   tests/cluster/slurm.sh [--bin FOLDER] [--if-asked]       (fixture.sh explains the options)
#
# Takes about five minutes. Leaves nothing behind; logs are printed when it fails.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
source "$tree/tests/cluster/fixture.sh"
read_options "$@"
need_root_and_slurm
source "$tree/tests/cluster/slurm_cluster.sh"

# Short: the path of a UNIX socket has at most 107 bytes.
folder=$(mktemp -d /tmp/tandem-cluster.XXXXXX)
failed=1
finish() {
    if [[ $failed != 0 ]]; then
        tail -n 60 "$folder"/*/tandem-*.log || true
        tail -n 30 "$folder"/slurm/log/*.log || true
    fi
    cluster_down "$folder/slurm"
    ! mountpoint -q "$folder/crowded/model" || umount "$folder/crowded/model"
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' INT TERM

# make_profile NAME STEPS    a profile, and its run folder
make_profile() {
    mkdir "$folder/$1"
    cat >"$folder/$1.env" <<PROFILE
bin=$bin
run=$folder/$1
corpus=($folder/corpus.jsonl)
train_tokenizer_options=(--vocab-size 320 --pattern gpt2)
encode_options=(--val-fraction 0.1)
preflight_options=(--quick --load-seconds 0.05 --trial-steps 2)
preflight_policy=warn # this machine may be busy
pretrain_options=(--model $folder/model.json --steps $2 --batch-tokens 8192 --sequence-length 32 --learning-rate 3e-3
    --checkpoint-every 20 --keep 0)
loss_options=(--sequence-length 32 --batch 4)
generate_options=(--prompt "the old" --max-tokens 12)
nodes=2
interfaces=lo
watchdog=120
keepalive_time=130
tokenize_time=00:05:00
pretrain_time=00:10:00
evaluate_time=00:05:00
stop_margin=30
max_restarts=1
PROFILE
}

# submit OPTIONS... PROFILE    fills job[STAGE]
declare -A job
submit() {
    local stage id
    while read -r stage id; do
        job[$stage]=$id
    done < <("$tree/jobscripts/slurm/chain.sh" "$@")
}

expect_in_log() { # RUN STAGE TEXT
    grep -qF -- "$3" "$folder/$1/tandem-$2-${job[$2]}.log" || fail "the log of $2 does not say '$3'"
}

await_in_log() { # RUN STAGE TEXT SECONDS
    local end=$((SECONDS + $4))
    until grep -qF -- "$3" "$folder/$1/tandem-$2-${job[$2]}.log"; do
        ((SECONDS < end)) || fail "the log of $2 does not say '$3'"
        sleep 0.2
    done
}

await_restart() { # STAGE TIMES SECONDS
    local end=$((SECONDS + $3))
    until [[ $(job_field "${job[$1]}" Restarts) == "$2" ]]; do
        ((SECONDS < end)) || fail "$1 was not queued again for the time number $2: $(job_field "${job[$1]}" JobState)"
        sleep 0.3
    done
}

# Waits until that turn of pretrain has begun and saved.
await_saving_turn() { # RUN TURN SECONDS
    local end=$((SECONDS + $3))
    until grep -qs "pretrain on .*, start $2," "$folder/$1/tandem-pretrain-${job[pretrain]}.log"; do
        ((SECONDS < end)) || fail "turn $2 of pretrain did not begin: $(job_field "${job[pretrain]}" JobState)"
        sleep 0.2
    done
    await_checkpoint "$1" "$3"
}

# --- the tests ---------------------------------------------------------------------------------------------------------

test_the_chain_finishes_by_itself_though_its_time_is_up() {
    make_profile chain 500
    # The first turn of pretrain lasts ten seconds or less, the later ones as long as they need.
    # shellcheck disable=SC2016  # for the profile
    echo '[[ ${SLURM_RESTART_COUNT:-0} -gt 0 ]] || { stop_margin=590; preflight_policy=off; }' >>"$folder/chain.env"
    [[ $("$tree/jobscripts/slurm/chain.sh" --dry-run "$folder/chain.env" | grep -c '^env .* sbatch .*sbatch ') == 3 ]] ||
        fail "--dry-run does not print three jobs"
    [[ -z $(squeue --noheader) ]] || fail "--dry-run has submitted jobs"
    submit "$folder/chain.env"
    local chain=("${job[tokenize]}" "${job[pretrain]}" "${job[evaluate]}")

    test_a_job_that_always_fails_is_given_up_and_those_after_it_are_cancelled

    job[tokenize]=${chain[0]} job[pretrain]=${chain[1]} job[evaluate]=${chain[2]}
    for stage in tokenize pretrain evaluate; do
        wait_for_job "${job[$stage]}" COMPLETED 600 || fail "$stage did not complete"
    done
    [[ $(job_field "${job[pretrain]}" Restarts) == 1 ]] || fail "pretrain was not queued again once"
    expect_in_log chain pretrain "queued again: it saved and stopped"
    [[ $(grep -c 'pretrain on n\[1-2\], start' "$folder/chain/tandem-pretrain-${job[pretrain]}.log") == 2 ]] ||
        fail "pretrain did not run twice on two nodes"
    expect_every_step_once "$folder/chain" 500
    python3 - "$folder/chain" <<'PYTHON' || fail "what evaluate has left"
import json, sys
loss, samples = (json.load(open(f"{sys.argv[1]}/{name}.json"))[0] for name in ("evaluation", "samples"))
assert loss["step"] == 500 and 0 < loss["bits_per_byte"] < 2, loss
assert samples["prompt"] == "the old" and samples["generated_tokens"] > 0, samples
PYTHON
    echo "passed: the chain finishes by itself, though pretrain's time was up once"
}

# Runs beside the chain, on the other core of each node: its pretrain is a program that is killed at once.
test_a_job_that_always_fails_is_given_up_and_those_after_it_are_cancelled() {
    mkdir "$folder/killed"
    printf '#!/bin/sh\nkill -KILL $$\n' >"$folder/killed/pretrain"
    chmod +x "$folder/killed/pretrain"
    make_profile looping 300
    echo "bin=$folder/killed" >>"$folder/looping.env"
    submit --from pretrain "$folder/looping.env"
    wait_for_job "${job[pretrain]}" FAILED 300 || fail "the job was not given up"
    expect_in_log looping pretrain "given up: restarted 1 times in a row at step 0"
    wait_for_job "${job[evaluate]}" CANCELLED 180 || fail "evaluate waits for a job that has failed"
    echo "passed: a job that always fails is given up, and those after it are cancelled"
}

test_a_run_survives_a_warning_and_lost_nodes() {
    make_profile nodes 600
    echo least_nodes=1 >>"$folder/nodes.env"
    cp "$folder/chain"/{tokenizer.json,train.h5,val.h5} "$folder/nodes"
    submit --from pretrain "$folder/nodes.env"

    await_saving_turn nodes 1 180
    scancel --signal=USR1 --batch "${job[pretrain]}" # what Slurm sends a minute before the time limit
    await_restart pretrain 1 90
    expect_in_log nodes pretrain "queued again: it saved and stopped"

    await_saving_turn nodes 2 180
    scontrol update nodename=n2 state=down reason=test
    await_restart pretrain 2 90
    expect_in_log nodes pretrain "DUE TO NODE FAILURE"
    await_in_log nodes pretrain "job ${job[pretrain]} waits for 1 of 2 nodes" 10
    await_saving_turn nodes 3 180
    expect_in_log nodes pretrain "pretrain on n1, start 3,"
    expect_in_log nodes pretrain "on 1 of 2 nodes"
    echo "passed: a run goes on, on what is left, after a node that Slurm noticed to be lost"

    scontrol update nodename=n2 state=resume
    scancel --signal=USR1 --batch "${job[pretrain]}"
    await_restart pretrain 3 90
    await_in_log nodes pretrain "job ${job[pretrain]} waits for 2 of 2 nodes" 10
    await_saving_turn nodes 4 180
    expect_in_log nodes pretrain "pretrain on n[1-2], start 4,"
    echo "passed: it has the node again once that is mended"

    crash_node "$folder/slurm" n2
    local run=("${job[pretrain]}" "${job[evaluate]}")
    test_a_cancelled_job_stays_cancelled
    job[pretrain]=${run[0]} job[evaluate]=${run[1]}
    await_restart pretrain 4 180
    expect_in_log nodes pretrain "node n2 is lost; waiting for Slurm to notice"
    for stage in pretrain evaluate; do
        wait_for_job "${job[$stage]}" COMPLETED 600 || fail "$stage did not complete"
    done
    [[ $(job_field "${job[pretrain]}" Restarts) == 4 ]] || fail "pretrain was queued again more than four times"
    expect_in_log nodes pretrain "pretrain on n1, start 5,"
    expect_in_log nodes evaluate "evaluate on n1, start 1,"
    expect_every_step_once "$folder/nodes" 600
    start_node "$folder/slurm" n2
    echo "passed: a run goes on, on what is left, after a node whose loss the ranks noticed first"
}

test_a_job_submitted_by_hand_has_the_resources_of_the_profile() {
    local log=$folder/by-hand.log id
    cd "$tree"
    id=$(sbatch --parsable --output="$log" jobscripts/slurm/evaluate.sbatch "$folder/chain.env")
    wait_for_job "$id" FAILED 180 || fail "a job of one rank ran a profile of two"
    [[ $(job_field "$id" ExitCode) == 2:0 ]] || fail "a job of one rank with a profile of two gave not 2"
    grep -qF -- '--nodes=2 --ntasks-per-node=1 --cpus-per-task=1' "$log" || fail "the log does not say what to submit"
    rm "$folder/chain/evaluation.json"
    id=$(sbatch --parsable --output="$log" --nodes=2 jobscripts/slurm/evaluate.sbatch "$folder/chain.env")
    wait_for_job "$id" COMPLETED 180 || fail "a job submitted by hand failed"
    [[ -s $folder/chain/evaluation.json ]] || fail "a job submitted by hand left nothing"
    rm "$folder/chain/preflight.txt"
    grep -v preflight_policy=off "$folder/chain.env" >"$folder/look.env" # but for its first turn
    id=$(sbatch --parsable --output="$log" --nodes=2 jobscripts/slurm/preflight.sbatch "$folder/look.env")
    wait_for_job "$id" COMPLETED 180 || fail "preflight submitted by hand failed"
    [[ -s $folder/chain/preflight.txt ]] || fail "preflight submitted by hand left nothing"
    echo "passed: a job submitted by hand works with the resources of the profile, and only with them"
}

# Runs on n1 while Slurm has yet to notice that n2 is lost.
test_a_cancelled_job_stays_cancelled() {
    make_profile cancelled 1000000
    echo nodes=1 >>"$folder/cancelled.env"
    cp "$folder/chain"/{tokenizer.json,train.h5,val.h5} "$folder/cancelled"
    submit --from pretrain "$folder/cancelled.env"
    await_saving_turn cancelled 1 180
    scancel "${job[pretrain]}"
    wait_for_job "${job[pretrain]}" CANCELLED 90 || fail "the job was not cancelled"
    wait_for_job "${job[evaluate]}" CANCELLED 90 || fail "evaluate waits for a job that was cancelled"
    sleep 3
    [[ $(job_field "${job[pretrain]}" JobState) == CANCELLED && $(job_field "${job[pretrain]}" Restarts) == 0 ]] ||
        fail "a cancelled job was queued again"
    echo "passed: a cancelled job stays cancelled"
}

# Both runs at once, a node each; preflight here is a program that calls the first node that it sees bad.
test_a_bad_node_is_left_out_and_seeds_share_their_tokens() {
    local program stage seed plan
    make_profile seeds 60
    mkdir "$folder/suspicious"
    for program in "$bin"/*; do ln -s "$program" "$folder/suspicious"; done
    rm -f "$folder/suspicious/preflight"
    cat >"$folder/suspicious/preflight" <<PROGRAM
#!/bin/sh
[ -s $folder/bad ] || hostname >$folder/bad
[ "\$(hostname)" = "\$(cat $folder/bad)" ] || { echo "go      processor   \$(hostname)"; exit 0; }
echo "no-go   matrix products   \$(hostname)   0.41 x of what others reach"
exit 4
PROGRAM
    chmod +x "$folder/suspicious/preflight"
    printf '%s\n' nodes=1 "bin=$folder/suspicious" preflight_policy=stop >>"$folder/seeds.env"
    printf '%s\n' '' '# mended' '#n1 2026-01-01 00:00:00 job 7: it started no process' >"$folder/seeds/bad-nodes"
    cp "$folder/chain"/{tokenizer.json,train.h5,val.h5} "$folder/seeds"
    local submission=("$tree/jobscripts/submit.sh" --profile "$folder/seeds.env" --seeds 1-2)
    plan=$("${submission[@]}" --dry-run --recipe quickstart)
    [[ $(grep -c ' sbatch --parsable ' <<<"$plan") == 3 && $(grep -c -- '--array=1' <<<"$plan") == 2 ]] ||
        fail "--dry-run: not the tokens once and an array for each later stage: $plan"
    [[ $plan == *TANDEM_RECIPE=*/quickstart.toml* && $plan == *afterok:*aftercorr:* ]] ||
        fail "--dry-run does not tell the recipe, or what waits for what: $plan"
    while read -r stage id; do job[$stage]=$id; done < <("${submission[@]}" --from pretrain)
    for stage in pretrain evaluate; do
        for seed in 1 2; do
            wait_for_job "${job[$stage]}_$seed" COMPLETED 300 ||
                fail "$stage of seed $seed did not complete: $(job_field "${job[$stage]}_$seed" JobState)"
        done
    done
    for seed in 1 2; do expect_every_step_once "$folder/seeds/seed-$seed" 60; done
    ! cmp -s "$folder"/seeds/seed-{1,2}/evaluation.json || fail "both seeds gave the same"
    grep -q "^$(cat "$folder/bad") .*preflight" "$folder/seeds/bad-nodes" || fail "the bad node is not noted"
    grep -qh "will be left out: preflight's no-go" "$folder"/seeds/seed-*/"tandem-pretrain-${job[pretrain]}.log" ||
        fail "the log does not tell"
    echo "passed: a bad node is left out, and runs of two seeds share their tokens"
    test_a_job_that_has_too_few_nodes_without_the_bad_ones_is_given_up
}

test_a_job_that_has_too_few_nodes_without_the_bad_ones_is_given_up() {
    make_profile pair 20
    cp "$folder/chain"/{tokenizer.json,train.h5,val.h5} "$folder/pair"
    printf '%s\n' "bin=$folder/suspicious" preflight_policy=stop >>"$folder/pair.env"
    submit --from pretrain "$folder/pair.env"
    wait_for_job "${job[pretrain]}" FAILED 180 || fail "a job that can never start again was not given up"
    expect_in_log pair pretrain "given up: without the nodes in $folder/pair/bad-nodes the partition has 1, and the run takes 2"
    wait_for_job "${job[evaluate]}" CANCELLED 180 || fail "evaluate waits for a job that was given up"
    echo "passed: a job that has too few nodes without the bad ones is given up"
}

test_a_run_survives_a_more_urgent_job_and_a_full_disk() {
    local id
    make_profile crowded 300
    cp "$folder/chain"/{tokenizer.json,train.h5,val.h5} "$folder/crowded"
    mkdir "$folder/crowded/model"
    submit --from pretrain "$folder/crowded.env"
    await_saving_turn crowded 1 180
    id=$(sbatch --parsable --partition=urgent --nodes=2 --exclusive --output=/dev/null --wrap="sleep 3")
    wait_for_job "$id" COMPLETED 180 || fail "the urgent job did not run: $(job_field "$id" JobState)"
    await_restart pretrain 1 180
    await_saving_turn crowded 2 180
    # Now its disk: what is left is too small for a step.
    scancel "${job[pretrain]}"
    wait_for_job "${job[pretrain]}" CANCELLED 90 || fail "the job was not cancelled"
    local whole kilobytes
    whole=$(newest_checkpoint crowded)
    kilobytes=$(du -sk "$folder/crowded/model" | cut -f 1)
    mv "$folder/crowded/model" "$folder/crowded/aside"
    mkdir "$folder/crowded/model"
    mount -t tmpfs -o "size=$((kilobytes + 100))k" tandem-test "$folder/crowded/model"
    cp -a "$folder/crowded/aside/." "$folder/crowded/model"
    submit --from pretrain "$folder/crowded.env"
    wait_for_job "${job[pretrain]}" FAILED 300 || fail "a run on a full disk did not fail: $(job_field "${job[pretrain]}" JobState)"
    expect_in_log crowded pretrain "No space left on device"
    (($(newest_checkpoint crowded) >= whole)) || fail "a checkpoint was lost on the full disk"
    mount -o remount,size=200m "$folder/crowded/model"
    submit --from pretrain "$folder/crowded.env"
    wait_for_job "${job[evaluate]}" COMPLETED 400 || fail "the run did not go on with more room"
    expect_every_step_once "$folder/crowded" 300
    echo "passed: a run goes on after a more urgent job, and after a disk that was full"
}

test_conversations_are_learned_in_the_chain() {
    make_profile chat 500
    printf '%s\n' "conversations=($folder/conversations.jsonl)" \
        'finetune_options=(--chat-template tandem --steps 30 --batch-tokens 1024 --sequence-length 64 --checkpoint-every 10)' \
        'chat_options=(--prompt "Who are you?" --max-tokens 8)' >>"$folder/chat.env"
    for ((i = 0; i < 20; ++i)); do
        echo '{"prompt": "Who are you?", "completion": "A horse."}' '{"prompt": "Where is it?", "completion": "Under a stone."}'
    done | sed 's/} {/}\n{/' >"$folder/conversations.jsonl"
    cp -r "$folder/chain"/{tokenizer.json,train.h5,val.h5,model} "$folder/chat"
    submit --from finetune "$folder/chat.env"
    wait_for_job "${job[evaluate]}" COMPLETED 300 ||
        fail "the chain of a finetuning did not complete: $(job_field "${job[finetune]}" JobState) $(job_field "${job[evaluate]}" JobState)"
    grep -q '"prompt": *"Who are you?"' "$folder/chat/answers.json" || fail "nobody was asked"
    echo "passed: conversations are learned in the chain"
}

make_corpus >"$folder/corpus.jsonl"
make_model >"$folder/model.json"
# Ports of this run, below those that the system hands out.
cluster_up "$folder/slurm" $((17000 + $$ % 700 * 20))
echo "two nodes are up after $SECONDS s"
test_the_chain_finishes_by_itself_though_its_time_is_up
test_a_job_submitted_by_hand_has_the_resources_of_the_profile
echo "after $SECONDS s"
test_conversations_are_learned_in_the_chain
test_a_bad_node_is_left_out_and_seeds_share_their_tokens
test_a_run_survives_a_more_urgent_job_and_a_full_disk
echo "after $SECONDS s"
test_a_run_survives_a_warning_and_lost_nodes
failed=0
echo "all passed after $SECONDS s"
