# shellcheck shell=bash
# Starts commands under mpirun, with what that needs. To be sourced.
#
#   launch RANKS COMMAND...                runs it and gives its exit code
#   launch_stoppable RANKS COMMAND...      the same for a program that can save and stop: USR1, TERM and INT to the
#                                          script reach it as USR1, and its exit code is then 75; a second TERM or INT
#                                          ends it at once
#
# launch_options holds further options of mpirun; profile.sh fills it.
launch_options=()

# As root (containers) mpirun wants to be told twice that this is meant.
if ((EUID == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# Sets command to the mpirun call.
mpirun_command() {
    local ranks=$1
    shift
    command=(mpirun -n "$ranks")
    [[ " ${launch_options[*]} " == *" --bind-to "* ]] || command+=(--bind-to none)
    # More ranks than cores: they must yield to one another, or each waits a thousand times longer. Where the slots come
    # from a hostfile or from Slurm, mpirun counts them itself.
    if [[ -z ${SLURM_JOB_ID:-} && " ${launch_options[*]} " != *" --hostfile "* ]] && ((ranks > $(nproc))); then
        command+=(--oversubscribe)
    fi
    command+=("${launch_options[@]}" "$@")
    export OMPI_MCA_mpi_yield_when_idle=1
}

launch() {
    local command
    mpirun_command "$@"
    "${command[@]}"
}

# Set once the script was told to stop, for a caller that would otherwise start the program again.
stop_asked=

# The process to stop, while there is one. Without it a signal is remembered, and launch_stoppable does not start.
launched=

pass_on_stop() {
    if [[ -z $launched ]]; then
        stop_asked=$1
    elif [[ -n $stop_asked && $1 != USR1 ]]; then
        kill -TERM "$launched" 2>/dev/null || true
    else
        stop_asked=$1
        kill -USR1 "$launched" 2>/dev/null || true # mpirun passes it on to its ranks
    fi
}

# From here on a signal that asks to stop does not end the script.
watch_stop_signals() {
    local signal
    for signal in USR1 TERM INT; do
        # shellcheck disable=SC2064  # the name is to be put in now
        trap "pass_on_stop $signal" "$signal"
    done
}

launch_stoppable() {
    local command code=0
    mpirun_command "$@"
    watch_stop_signals
    [[ -z $stop_asked ]] || return 75
    # In a session of its own it does not get the terminal's INT, on which mpirun kills its ranks without their saving.
    # A batch system tells what belongs to a job by its own means.
    [[ -n ${SLURM_JOB_ID:-} ]] || command=(setsid "${command[@]}")
    "${command[@]}" &
    launched=$!
    # wait also returns when a signal was handled; of a process that has ended it gives the exit code again.
    while :; do
        code=0
        wait "$launched" || code=$?
        kill -0 "$launched" 2>/dev/null || break
    done
    code=0
    wait "$launched" || code=$?
    launched=
    return "$code"
}
