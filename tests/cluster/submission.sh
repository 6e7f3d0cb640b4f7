#!/usr/bin/env bash
# What the job scripts hand to Slurm, by a sbatch that writes down what it is given: paths with commas and percent signs,
# lists of seeds, notes of bad nodes.
#
#   tests/cluster/submission.sh
#
# Takes a second, and needs neither Slurm nor the executables.
#
# shellcheck source-path=SCRIPTDIR disable=SC2030,SC2031
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
folder=$(mktemp -d /tmp/tandem-submission.XXXXXX)
trap 'rm -rf "$folder"' EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# A tree, a run and a recipe under paths that need care.
site="$folder/50%, of it"
mkdir -p "$site/runs, 7%" "$folder/slurm" "$folder/bin"
cp -r "$tree/jobscripts" "$site"
printf '#!/bin/sh\n' | tee "$folder/bin/pretrain" >"$folder/bin/tokenize"
chmod +x "$folder/bin"/*
: >"$site/a,b.toml"
cat >"$site/site.env" <<PROFILE
bin=$folder/bin
run=$(printf %q "$site/runs, 7%")
corpus=(text.jsonl)
nodes=2
PROFILE

# Writes the arguments of each call, an argument a line, and what the job would find in its environment.
cat >"$folder/slurm/sbatch" <<'PROGRAM'
#!/usr/bin/env bash
printf '%s\n' "TANDEM_FOLDER=$TANDEM_FOLDER" "TANDEM_RECIPE=${TANDEM_RECIPE:-}" "$@" >>"$SUBMITTED"
echo 17
PROGRAM
# Of a node list n1,n2 a line a node.
# shellcheck disable=SC2016  # for the program
printf '#!/bin/sh\necho "$3" | tr , "\\n"\n' >"$folder/slurm/scontrol"
chmod +x "$folder/slurm"/*
export SUBMITTED=$folder/submitted

submit() {
    : >"$SUBMITTED"
    PATH=$folder/slurm:$PATH "$site/jobscripts/submit.sh" --profile "$site/site.env" "$@"
}

expect_submitted() { grep -qxF -- "$1" "$SUBMITTED" || fail "sbatch was not given '$1' but: $(cat "$SUBMITTED")"; }

test_paths_with_commas_and_percent_signs_reach_the_job() {
    submit --recipe "$site/a,b.toml" --seeds 1-2 >/dev/null
    expect_submitted "TANDEM_FOLDER=$site"
    expect_submitted "TANDEM_RECIPE=$site/a,b.toml"
    expect_submitted "--export=ALL"
    # sbatch makes a % of %%.
    expect_submitted "--output=$folder/50%%, of it/runs, 7%%/seed-%a/%x-%A.log"
    expect_submitted "--output=$folder/50%%, of it/runs, 7%%/%x-%j.log"
    [[ -d "$site/runs, 7%/seed-2" ]] || fail "Slurm finds no folder for the logs of a seed"
    echo "passed: paths with commas and percent signs reach the job"
}

test_bad_nodes_may_be_struck_out_by_hand() {
    local notes="$site/runs, 7%/bad-nodes"
    printf '%s\n' '' '# in repair until Monday' 'n3 2026-12-01 10:00:00 job 7: no-go' '  # n4' '#n5 mended' >"$notes"
    submit >/dev/null
    expect_submitted --exclude=n3
    printf '\n# none\n' >"$notes"
    submit >/dev/null
    ! grep -q -- --exclude "$SUBMITTED" || fail "nodes are left out though none is noted"
    echo "passed: bad nodes may be struck out by hand"
}

# no_go_of NODES LINE...    the nodes that are noted after a no-go with these lines
no_go_of() {
    local run=$folder/no-go nodes=$1
    shift
    rm -rf "$run"
    mkdir "$run"
    printf '%s\n' "$@" >"$run/preflight.txt"
    (
        cd "$site"
        export PATH=$folder/slurm:$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST=$nodes
        source jobscripts/slurm/job.sh
        # shellcheck disable=SC2034  # for bad_nodes
        data=$run
        note_nodes_of_no_go >/dev/null && note_nodes_of_no_go >/dev/null # the second time there is nothing to add
    ) || true
    [[ ! -f $run/bad-nodes ]] || cut -d ' ' -f 1 "$run/bad-nodes" | paste -sd,
}

test_a_no_go_is_of_the_node_that_it_names() {
    local nodes=n1,n1-ib,n10,n2.site
    [[ $(no_go_of "$nodes" 'go   clock   n10' '  no-go  clock  rank 0 (n1)  799 MHz') == n1 ]] || fail "of n1"
    [[ $(no_go_of "$nodes" 'no-go   memory of the host   n1-ib   3 GiB') == n1-ib ]] || fail "of n1-ib"
    [[ $(no_go_of "$nodes" 'no-go   memory of the host   n1.cluster.local   3 GiB') == n1 ]] || fail "of a whole name"
    [[ $(no_go_of "$nodes" 'no-go   HDF5   all nodes   1.10 on n10; 1.14 on n2.site') == n10,n2.site ]] || fail "of two"
    [[ -z $(no_go_of "$nodes" 'no-go   memory of the host   n2xsite   3 GiB') ]] || fail "of another node"
    [[ -z $(no_go_of n1,n2 'no-go   MTU   all nodes   9000 on n1; 1500 on n2') ]] || fail "of all nodes: nothing to choose"
    echo "passed: a no-go is of the node that it names"
}

test_seeds_are_named_once() {
    local list system code
    for list in 1,2,1 1-4,3 01,1 8-1 4+5; do
        for system in slurm mpirun; do
            code=0
            "$site/jobscripts/$system/chain.sh" --dry-run --seeds "$list" "$site/site.env" >/dev/null \
                2>"$folder/refused" || code=$?
            ((code == 2)) || fail "--seeds $list gave exit code $code"
            grep -qF -- "--seeds: '$list'" "$folder/refused" || fail "--seeds $list is refused with: $(cat "$folder/refused")"
        done
    done
    echo "passed: seeds are named once"
}

test_the_tokens_are_made_once_for_all_seeds() {
    local plan system from
    for system in slurm mpirun; do
        for from in '' '--from tokenize'; do
            # shellcheck disable=SC2086  # none or two words
            plan=$("$site/jobscripts/$system/chain.sh" --dry-run --seeds 4-6 $from "$site/site.env")
            [[ $(grep -c 'tokenize\.\(sh\|sbatch\)' <<<"$plan") == 1 ]] || fail "not tokenized once: $plan"
            ! grep 'tokenize\.' <<<"$plan" | grep -qE 'SEED|--array' || fail "tokens are made for one seed: $plan"
            grep -qE 'SEED=6 .*evaluate.sh|--array=4-6 .*evaluate.sbatch' <<<"$plan" || fail "no evaluation of seed 6: $plan"
        done
    done
    echo "passed: the tokens are made once for all seeds"
}

test_fewer_nodes_at_least_than_all() {
    local code=0
    echo least_nodes=3 >>"$site/site.env"
    submit >/dev/null 2>"$folder/refused" || code=$?
    ((code == 2)) || fail "more nodes at least than there are gave exit code $code"
    grep -q 'least_nodes is 3, and nodes is 2' "$folder/refused" || fail "it is refused with: $(cat "$folder/refused")"
    echo "passed: fewer nodes at least than all"
}

test_paths_with_commas_and_percent_signs_reach_the_job
test_bad_nodes_may_be_struck_out_by_hand
test_a_no_go_is_of_the_node_that_it_names
test_seeds_are_named_once
test_the_tokens_are_made_once_for_all_seeds
test_fewer_nodes_at_least_than_all
