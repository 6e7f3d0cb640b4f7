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
# A job that may go on with fewer nodes (least_nodes) is told to wait for no more than there are, whenever it goes back into
# the queue. Only where the node is lost that this script ran on, nobody is left to tell Slurm so.
#
# stages.sh's may_start ends it all when restarts bring no newer checkpoint.
#
# shellcheck disable=SC2154  # the settings come from read_profile
# shellcheck source-path=SCRIPTDIR

source jobscripts/mpirun/launch.sh
source jobscripts/mpirun/profile.sh
source jobscripts/mpirun/stages.sh

# What Slurm's commands are to act on: of an array this task alone, the number of whose job may be that of the array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}

say() { echo "$(date '+%F %T') job $job: $*"; }

# Seconds until the job's time limit; nothing where it has none.
seconds_left() {
    local end
    end=$(squeue --noheader --jobs="$job" --format=%e)
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

job_state() { squeue --noheader --jobs="$job" --states=all --format=%T; }

queue_again() {
    say "queued again: $*"
    trap '' TERM # there is something left to do while Slurm ends this script
    scontrol requeue "$job" || return
    leave_out_bad_nodes
    fit_to_sound_nodes "$job" "$SLURM_JOB_NUM_NODES"
    trap - TERM
    sleep 60 & # Slurm ends this script now
    wait $!
}

# The run folder's bad-nodes (one for all seeds), a line a node: its name, and why later starts are not to be put on it.
# For people to strike out again.
note_bad_node() { # NODE REASON
    ! grep -qxF -- "$1" <<<"$(bad_nodes)" || return 0
    echo "$1 $(date '+%F %T') job $job: $2" >>"$data/bad-nodes"
    say "node $1 will be left out: $2"
}

# Slurm takes this only of a job that waits.
leave_out_bad_nodes() {
    [[ -n $(bad_nodes) ]] || return 0
    scontrol update jobid="$job" excnodelist="$(bad_nodes | paste -sd,)" ||
        say "the nodes in $data/bad-nodes could not be left out"
}

# Nodes of the partition that Slurm takes for sound and that are not to be left out.
sound_nodes() {
    sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --format='%N %T' |
        awk '$2 !~ /down|drain|fail|maint|unknown|[*]/ { print $1 }' | sort -u | grep -vxF "$(bad_nodes)" || true
}

# fit_to_sound_nodes JOB NODES     has a job that waits for so many nodes wait for as many as are sound, from least_nodes to
# all of them
fit_to_sound_nodes() {
    local sound
    ((least_nodes < all_nodes)) || return 0
    sound=$(sound_nodes | wc -l)
    ((sound <= all_nodes)) || sound=$all_nodes
    ((sound >= least_nodes && sound != $2)) || return 0
    # Not of one that was cancelled.
    scontrol update jobid="$1" numnodes="$sound" numtasks=$((sound * ranks_per_node)) 2>/dev/null || return 0
    say "job $1 waits for $sound of $all_nodes nodes"
}

# The jobs that wait for this one to succeed.
fit_those_that_wait() {
    local id count
    while read -r id count _; do fit_to_sound_nodes "$id" "$count"; done < <(
        squeue --noheader --states=pending --format='%i %D %E' | grep -E ":${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}([^0-9]|\$)")
}

# Slurm has found a node to be lost: it ends this script, and has put the job back into the queue.
at_stop() { # SIGNAL
    [[ $1 != TERM ]] || fit_to_sound_nodes "$job" "$SLURM_JOB_NUM_NODES"
}

# False, with the reason, where too few nodes are left for the job ever to start again.
enough_nodes_are_left() {
    local left
    left=$(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --format=%N | sort -u | grep -cvxF "$(bad_nodes)")
    ((left < least_nodes)) || return 0
    say "given up: without the nodes in $data/bad-nodes the partition has $left, and the run takes $least_nodes"
    return 1
}

# Whether lines name a node: alone, or with its domain. n1-ib is another name than n1.
names_node() { # NODE < LINES
    grep -E -- "(^|[^[:alnum:]._-])${1//./\\.}(\.[[:alnum:].-]*)?([^[:alnum:]._-]|\$)" >/dev/null
}

# Notes those nodes of the job that preflight's no-go lines name. False where it names none, or all of them: then there is
# nothing to choose.
note_nodes_of_no_go() {
    local node own bad=()
    mapfile -t own < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    for node in "${own[@]}"; do
        ! grep -E '^ *no-go' "$run/preflight.txt" | names_node "$node" || bad+=("$node")
    done
    ((${#bad[@]} > 0 && (${#bad[@]} < ${#own[@]} || ${#own[@]} == 1))) || return 1
    for node in "${bad[@]}"; do note_bad_node "$node" "preflight's no-go"; done
}

# The nodes of this turn. A job of chain.sh may have fewer than it was submitted with, by least_nodes or because its owner
# has told Slurm so (scontrol update jobid=ID numnodes=N numtasks=RANKS), for want of a node that is lost for good.
take_nodes() { # STAGE
    all_nodes=$nodes
    local least=$nodes tasks=${SLURM_NTASKS_PER_NODE:-1}
    [[ -z ${TANDEM_FOLDER:-} ]] || least=1
    ((SLURM_JOB_NUM_NODES >= least && SLURM_JOB_NUM_NODES <= nodes && tasks == ranks_per_node)) ||
        profile_error "the job has $SLURM_JOB_NUM_NODES nodes with $tasks ranks each; submit it by slurm/chain.sh --from $1," \
            "or with --nodes=$nodes --ntasks-per-node=$ranks_per_node --cpus-per-task=$threads"
    ((SLURM_JOB_NUM_NODES == nodes)) || say "on $SLURM_JOB_NUM_NODES of $nodes nodes"
    nodes=$SLURM_JOB_NUM_NODES
    ranks=$((nodes * ranks_per_node))
}

run_job() {
    local stage=$1 code=0 first lost node seconds=
    [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || export TANDEM_SEED=$SLURM_ARRAY_TASK_ID
    read_profile "$2"
    take_nodes "$stage"
    # shellcheck disable=SC2034  # for stages.sh
    [[ $stage != finetune ]] || training=chat
    may_start "slurm-$job" || exit 1
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
    trap - INT HUP
    trap 'at_stop TERM; exit 143' TERM # Slurm may end this script now
    say "$stage ended with exit code $code, newest checkpoint: step $(newest_step)"
    ((code != 0)) || fit_those_that_wait
    case $code in 0 | 2 | 3) exit "$code" ;; esac
    if ((code == 4)); then
        if ! note_nodes_of_no_go || ! enough_nodes_are_left; then exit 4; fi
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
        enough_nodes_are_left || exit "$code"
        queue_again "a node was lost" || exit "$code"
    elif ((code > 128)); then
        queue_again "a rank was killed" || exit "$code"
    elif (($(newest_step) > first)); then
        queue_again "it failed after newer checkpoints" || exit "$code"
    fi
    exit "$code"
}
