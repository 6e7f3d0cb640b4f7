# shellcheck shell=bash
# A private Slurm with two nodes, n1 and n2, on this one machine: root, no systemd, no cgroups, no database. To be sourced.
#
#   cluster_up FOLDER PORT      starts it; all its files are below FOLDER, its ports are PORT to PORT + 12
#   cluster_down FOLDER         ends it and all of its jobs
#   start_node FOLDER NODE      starts a node's daemon (again)
#   crash_node FOLDER NODE      kills a node: its daemon, and all that runs on it
#   job_field JOB NAME          a field of scontrol show job
#   wait_for_job JOB STATE SECONDS    until it is in that state; false when it is not by then, or has ended in another
#
# Each node's daemon lives in a UTS namespace of its own, so that Open MPI sees hosts n1 and n2.

cluster_up() {
    local folder=$1 port=$2 node
    mkdir -p "$folder"/{etc,run,state,spool/n1,spool/n2,log,tmp/n1,tmp/n2}
    chmod 755 "$folder" "$folder"/*
    dd if=/dev/urandom of="$folder/etc/munge.key" bs=128 count=1 status=none
    chmod 400 "$folder/etc/munge.key"
    munged --force --key-file="$folder/etc/munge.key" --socket="$folder/run/munge.sock" \
        --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged.log" \
        --seed-file="$folder/run/munged.seed" --num-threads=2 2>"$folder/log/munged.stderr"
    : >"$folder/etc/plugstack.conf"
    cluster_configuration "$folder" "$port" >"$folder/etc/slurm.conf"

    # Without it every client looks for a cluster elsewhere.
    export SLURM_CONF=$folder/etc/slurm.conf
    # Both nodes share the same cores and network: ranks must not be bound, and stay on the loopback.
    export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
    slurmctld -f "$SLURM_CONF" -i >"$folder/log/slurmctld.out" 2>&1 </dev/null
    for node in n1 n2; do start_node "$folder" "$node"; done
    for _ in {1..300}; do
        # A node has a line for each of its partitions.
        [[ $(sinfo --noheader --Node --format='%N %T' 2>/dev/null | sort -u | grep -c ' idle$') != 2 ]] || return 0
        sleep 0.2
    done
    echo "the nodes did not come up:" >&2
    tail -n 20 "$folder"/log/*.log >&2
    return 1
}

# cred_expire: how long a requeued job waits (the default is two minutes). SlurmdTimeout: after that a silent node is down.
# TmpFS: where MPI's launcher keeps sockets, which the nodes must not share.
cluster_configuration() {
    local folder=$1 port=$2
    cat <<CONFIGURATION
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/run/munge.sock,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
TmpFS=$folder/tmp/%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
PlugStackConfig=$folder/etc/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=10000,bf_min_age_reserve=0
SlurmdParameters=config_overrides
MailProg=/bin/true
ReturnToService=1
JobRequeue=1
KillWait=2
MinJobAge=3600
MessageTimeout=10
SlurmctldTimeout=10
SlurmdTimeout=10
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=$((port + 11)) CPUs=2 RealMemory=1024 State=UNKNOWN
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=$((port + 12)) CPUs=2 RealMemory=1024 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=batch Nodes=n[1-2] Default=YES MaxTime=UNLIMITED DefaultTime=10 State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-2] MaxTime=UNLIMITED DefaultTime=10 State=UP PriorityTier=10 PreemptMode=OFF
CONFIGURATION
}

start_node() {
    # shellcheck disable=SC2016  # for the inner shell
    unshare --uts bash -c 'hostname "$1" && exec slurmd -N "$1" -f "$2"' bash "$2" "$1/etc/slurm.conf" \
        >>"$1/log/slurmd-$2.out" 2>&1 </dev/null
}

# Processes whose environment has all of the lines given; ended ones have none.
processes_with() {
    local process line
    for process in /proc/[0-9]*; do
        for line in "$@"; do
            { tr '\0' '\n' <"$process/environ" | grep -xE "$line"; } >/dev/null 2>&1 || continue 2
        done
        echo "${process#/proc/}"
    done
}

crash_node() {
    local host process
    host=$(readlink "/proc/$(<"$1/run/slurmd-$2.pid")/ns/uts")
    [[ -n $host && $host != "$(readlink /proc/self/ns/uts)" ]] || return
    for process in /proc/[0-9]*; do
        [[ $(readlink "$process/ns/uts" 2>/dev/null) != "$host" ]] || kill -KILL "${process#/proc/}" 2>/dev/null || true
    done
}

# Ends the process of a pid file, if it is still one of FOLDER's.
stop_daemon() {
    local folder=$1 process
    process=$(cat "$2" 2>/dev/null) || return 0
    for signal in TERM TERM KILL; do
        for _ in {1..30}; do
            { tr '\0' ' ' <"/proc/$process/cmdline" | grep -F "$folder"; } >/dev/null 2>&1 || return 0
            kill -s "$signal" "$process" 2>/dev/null || return 0
            sleep 0.1
        done
    done
}

cluster_down() {
    local folder=$1 file process
    [[ -d $folder/run ]] || return 0
    if timeout 5 scontrol ping >/dev/null 2>&1; then
        timeout 5 scancel --user=root >/dev/null 2>&1 || true
        for _ in {1..50}; do
            [[ -n $(timeout 5 squeue --noheader 2>/dev/null) ]] || break
            sleep 0.1
        done
    fi
    for file in "$folder"/run/slurmd-*.pid "$folder/run/slurmctld.pid"; do stop_daemon "$folder" "$file"; done
    # What a killed node has left.
    for process in $(processes_with "SLURM_CONF=$folder/etc/slurm.conf" 'SLURM_JOB_ID=.*'); do
        kill -KILL "$process" 2>/dev/null || true
    done
    stop_daemon "$folder" "$folder/run/munged.pid"
}

job_field() {
    scontrol --oneliner show job "$1" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1
}

wait_for_job() {
    local end=$((SECONDS + $3)) state=
    while ((SECONDS < end)); do
        state=$(job_field "$1" JobState)
        case $state in
            "$2") return 0 ;;
            COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | DEADLINE | OUT_OF_MEMORY) break ;;
        esac
        sleep 0.3
    done
    echo "job $1 is $state after $SECONDS s, not $2" >&2
    return 1
}
