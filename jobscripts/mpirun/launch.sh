# shellcheck shell=bash
# Starts commands under mpirun, with what that needs. To be sourced.
#
#   launch RANKS COMMAND...              runs it and gives its exit code; a signal to the script ends it
#   launch_stoppable RANKS COMMAND...    the same for a program that can save and stop: TERM, INT and USR1 to the script
#                                        reach it as USR1, and its exit code is then 75; a second TERM or INT ends it
#
# launch_options holds further options of mpirun; profile.sh fills it.
launch_options=()

# Where a link to another host is cut, mpirun waits for that host's farewell for a quarter of an hour, long after the
# watchdog has ended the ranks: TCP's keepalive does not count while something sent is not acknowledged. So once the
# ranks of this host are gone, mpirun has this many seconds.
seconds_to_end=60

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
    # In a session of its own it does not get the terminal's INT, on which it would kill its ranks without their saving.
    # A batch system tells what belongs to a job by its own means.
    [[ -n ${SLURM_JOB_ID:-} ]] || command=(setsid "${command[@]}")
}

children_of() { cat "/proc/$1/task"/*/children 2>/dev/null || true; }

# has_ranks_here MPIRUN PROGRAM
has_ranks_here() {
    local child
    for child in $(children_of "$1"); do
        [[ $(readlink "/proc/$child/exe" 2>/dev/null) != "$2" ]] || return 0
    done
    return 1
}

# end_without_ranks MPIRUN PROGRAM     ends an mpirun that stays although its ranks here, once seen, are gone
end_without_ranks() {
    local program seen='' gone_at='' child rest
    program=$(realpath "$2")
    while kill -0 "$1" 2>/dev/null; do
        if has_ranks_here "$1" "$program"; then
            seen=1 gone_at=''
        elif [[ -n $seen ]]; then
            gone_at=${gone_at:-$SECONDS}
            if ((SECONDS - gone_at >= seconds_to_end)); then
                echo "the ranks of $(hostname) ended $seconds_to_end s ago and mpirun does not: a host is lost; ending mpirun" >&2
                rest=$(children_of "$1")
                kill -KILL "$1" 2>/dev/null || true
                for child in $rest; do kill -TERM "$child" 2>/dev/null || true; done # what has started the other hosts
                return
            fi
        fi
        sleep 1
    done
}

# Set once the script was told to stop, for a caller that would otherwise start the program again.
stop_asked=

# The mpirun under way, and the signal that it gets when the script is told to stop.
launched=
stop_signal=

# What a caller has to do at once when it is told to stop, by a signal of that name.
at_stop() { :; }

pass_on_stop() {
    at_stop "$1"
    if [[ -n $launched ]]; then
        # mpirun passes USR1 on to its ranks.
        if [[ -z $stop_asked || $1 == USR1 ]]; then
            kill -s "$stop_signal" "$launched" 2>/dev/null || true
        else
            kill -TERM "$launched" 2>/dev/null || true
        fi
    fi
    stop_asked=$1
}

# From here on a signal that asks to stop does not end the script.
watch_stop_signals() {
    local signal
    for signal in USR1 TERM INT HUP; do
        # shellcheck disable=SC2064  # the name is to be put in now
        trap "pass_on_stop $signal" "$signal"
    done
}

# run_watched PROGRAM     runs command, whose ranks are PROGRAM
run_watched() {
    local code=0 watcher
    "${command[@]}" &
    launched=$!
    end_without_ranks "$launched" "$1" &
    watcher=$!
    # wait also returns when a signal was handled; of a process that has ended it gives the exit code again.
    while :; do
        wait "$launched" || true
        kill -0 "$launched" 2>/dev/null || break
    done
    wait "$launched" || code=$?
    launched=
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    return "$code"
}

launch() {
    local command code=0
    mpirun_command "$@"
    stop_signal=TERM
    watch_stop_signals
    run_watched "$2" || code=$?
    trap - USR1 TERM INT HUP
    [[ -z $stop_asked || $code != 0 ]] || code=130
    return "$code"
}

launch_stoppable() {
    local command
    mpirun_command "$@"
    stop_signal=USR1
    watch_stop_signals
    [[ -z $stop_asked ]] || return 75
    run_watched "$2"
}
