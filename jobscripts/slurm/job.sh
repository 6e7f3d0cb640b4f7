# shellcheck shell=bash
# What the Slurm jobs of all stages share: run_job STAGE PROFILE. To be sourced by the .sbatch files.
#
# A stage that ends is done (0), or the job goes back into the queue under its own number, so that the jobs that wait for
# it go on waiting, or it has failed:
#
#   exit code                                        the job is
#   75 (saved: time limit or signal)                 queued again
#   4 no-go that names some of the job's nodes       queued again, without these nodes
#   2 usage, 3 bad input data, 4 no-go of all        failed: it would be the same again
#   1, a node of the job no longer answers           queued again
#   1, after newer checkpoints than it began with    queued again
#   1, otherwise                                     failed
#   above 128 (a rank or a host was killed)          queued again
#
# Two of these meet when a node is lost. Slurm finds that out by itself (SlurmdTimeout, 300 s by default) and queues the
# job again, ending this script. Or the surviving ranks end first: a script that left now would make the job FAILED. So
# it stays until Slurm has noticed: then the requeued job is not put on the lost node either.
#
# stages.sh's may_start ends it all when restarts bring no newer checkpoint.
#
# shellcheck disable=SC2154  # the settings come from read_profile
# shellcheck source-path=SCRIPTDIR

source jobscripts/mpirun/launch.sh
source jobscripts/mpirun/profile.sh
source jobscripts/mpirun/stages.sh

say() { echo "$(date '+%F %T') job $SLURM_JOB_ID: $*"; }

# Seconds until the job's time limit; nothing where it has none.
seconds_left() {
    local end
    end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)
    [[ $end =~ ^[0-9]{4}- ]] || return 0
    echo $(($(date -d "$end" +%s) - $(date +%s)))
}

# Nodes of this job that start no process any more.
lost_nodes() {
    local node
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        timeout 30 srun --overlap --jobid="$SLURM_JOB_ID" --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
            --nodelist="$node" --mpi=none true >/dev/null 2>&1 || echo "$node"
    done
}

# Stays until Slurm has noticed that a node is lost, which as a rule ends this script.
await_slurm() {
    local timeout
    timeout=$(scontrol show config | sed -n 's/^SlurmdTimeout *= *\([0-9]*\).*/\1/p')
    sleep $((${timeout:-300} * 2 + 60)) &
    wait $!
}

job_state() { squeue --noheader --jobs="$SLURM_JOB_ID" --states=all --format=%T; }

queue_again() {
    say "queued again: $*"
    trap '' TERM # there is something left to do while Slurm ends this script
    scontrol requeue "$SLURM_JOB_ID" || return
    leave_out_bad_nodes
    trap - TERM
    sleep 60 & # Slurm ends this script now
    wait $!
}

# The run folder's bad-nodes, a line a node: its name, and why later starts are not to be put on it. For people to strike
# out again.
note_bad_node() { # NODE REASON
    [[ ! -f $run/bad-nodes ]] || ! grep -q "^$1 " "$run/bad-nodes" || return 0
    echo "$1 $(date '+%F %T') job $SLURM_JOB_ID: $2" >>"$run/bad-nodes"
    say "node $1 will be left out: $2"
}

# Slurm takes this only of a job that waits.
leave_out_bad_nodes() {
    [[ -s $run/bad-nodes ]] || return 0
    scontrol update jobid="$SLURM_JOB_ID" excnodelist="$(cut -d ' ' -f 1 "$run/bad-nodes" | sort -u | paste -sd,)" ||
        say "the nodes in $run/bad-nodes could not be left out"
}

# Notes those nodes of the job that preflight's no-go lines name. False where it names none, or all of them: then there is
# nothing to choose.
note_nodes_of_no_go() {
    local node own bad=()
    mapfile -t own < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    for node in "${own[@]}"; do
        ! grep -E '^ *no-go' "$run/preflight.txt" | grep -qw -- "$node" || bad+=("$node")
    done
    ((${#bad[@]} > 0 && (${#bad[@]} < ${#own[@]} || ${#own[@]} == 1))) || return 1
    for node in "${bad[@]}"; do note_bad_node "$node" "preflight's no-go"; done
}

run_job() {
    local stage=$1 code=0 first lost node seconds=
    read_profile "$2"
    ((${SLURM_NTASKS:-$ranks} == ranks)) ||
        profile_error "nodes x ranks_per_node are $ranks ranks, but the job has ${SLURM_NTASKS:-}; submit it by slurm/chain.sh" \
            "--from $stage, or with --nodes=$nodes --ntasks-per-node=$ranks_per_node --cpus-per-task=$threads"
    # shellcheck disable=SC2034  # for stages.sh
    [[ $stage != finetune ]] || training=chat
    may_start "slurm-$SLURM_JOB_ID" || exit 1
    first=$(newest_step)
    say "$stage on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1)), newest checkpoint: step $first"
    # At each start: the nodes may be others than the last time.
    [[ $stage != pretrain ]] || preflight_stage || code=$?
    if [[ $stage == pretrain || $stage == finetune ]] && ((code == 0)); then
        seconds=$(seconds_left)
        if [[ -n $seconds ]]; then
            ((seconds > stop_margin)) ||
                profile_error "${stage}_time leaves $seconds s, not more than the $stop_margin s of stop_margin"
            seconds=$((seconds - stop_margin))
        fi
    fi
    ((code != 0)) || "${stage}_stage" "$seconds" || code=$?
    trap '' USR1
    trap - TERM INT HUP # Slurm may end this script now
    say "$stage ended with exit code $code, newest checkpoint: step $(newest_step)"
    case $code in 0 | 2 | 3) exit "$code" ;; esac
    if ((code == 4)); then
        note_nodes_of_no_go || exit 4
        queue_again "on other nodes" || exit 4
    fi
    # Cancelled, or queued again by Slurm itself: to stay so.
    if [[ $(job_state) != RUNNING ]]; then
        say "Slurm is ending this turn: $(job_state)"
        exit "$code"
    fi
    if ((code == 75)); then
        queue_again "it saved and stopped" || exit "$code"
    fi
    lost=$(lost_nodes)
    if [[ -n $lost ]]; then
        say "node $(paste -sd, <<<"$lost") is lost; waiting for Slurm to notice"
        await_slurm
        # It has seen nothing.
        while read -r node; do note_bad_node "$node" "it started no process"; done <<<"$lost"
        queue_again "a node was lost" || exit "$code"
    elif ((code > 128)); then
        queue_again "a rank was killed" || exit "$code"
    elif (($(newest_step) > first)); then
        queue_again "it failed after newer checkpoints" || exit "$code"
    fi
    exit "$code"
}
