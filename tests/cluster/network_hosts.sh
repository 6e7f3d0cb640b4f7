# shellcheck shell=bash
# Two hosts on this one machine, as network namespaces on a bridge. To be sourced. Needs root.
#
#   hosts_up PREFIX SUBNET       hosts 1 and 2 with the addresses SUBNET.1 and SUBNET.2, in the namespaces PREFIX1 and PREFIX2
#   hosts_down PREFIX            ends what runs on them and removes them
#   on_host PREFIX K COMMAND...  runs a command on host K, named hK
#   mpirun_on_hosts PREFIX SUBNET HOSTFILE ARGUMENT...
#                                started on host 1; PREFIX has to stand in TANDEM_HOSTS, for host_agent.sh
#   cut_link PREFIX K            from now on packets to and from host K are lost without a word
#   heal_link PREFIX K
#   limit_links PREFIX RATE      what both hosts send goes no faster, 1gbit for example
#   processes_on PREFIX K        their ids

hosts_up() {
    local prefix=$1 subnet=$2 k
    ip netns add "${prefix}0"
    ip -n "${prefix}0" link add bridge0 type bridge
    ip -n "${prefix}0" link set bridge0 up
    for k in 1 2; do
        ip netns add "$prefix$k"
        ip -n "$prefix$k" link set lo up
        ip -n "$prefix$k" link add eth0 type veth peer name "port$k" netns "${prefix}0"
        ip -n "$prefix$k" addr add "$subnet.$k/24" dev eth0
        ip -n "$prefix$k" link set eth0 up
        ip -n "${prefix}0" link set "port$k" up
        heal_link "$prefix" "$k"
    done
}

heal_link() { ip -n "${1}0" link set "port$2" master bridge0; }
cut_link() { ip -n "${1}0" link set "port$2" nomaster; }
limit_links() {
    local k
    for k in 1 2; do
        tc -n "$1$k" qdisc replace dev eth0 root tbf rate "$2" burst 256kb latency 20ms
    done
}
processes_on() { ip netns pids "$1$2" 2>/dev/null; }

on_host() {
    local prefix=$1 k=$2
    shift 2
    # shellcheck disable=SC2016  # for the inner shell
    nsenter --net="/run/netns/$prefix$k" unshare --uts sh -c 'hostname "$0" && exec "$@"' "h$k" "$@"
}

mpirun_on_hosts() {
    local prefix=$1 subnet=$2 hostfile=$3 here
    here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
    shift 3
    on_host "$prefix" 1 mpirun --allow-run-as-root --hostfile "$hostfile" --bind-to none \
        --mca plm_rsh_agent "$here/host_agent.sh" --mca btl_tcp_if_include "$subnet.0/24" \
        --mca oob_tcp_if_include "$subnet.0/24" --mca mpi_yield_when_idle 1 "$@"
}

hosts_down() {
    local k process
    for k in 0 1 2; do
        for process in $(processes_on "$1" "$k"); do
            kill -KILL "$process" 2>/dev/null || true
        done
        ip netns del "$1$k" 2>/dev/null || true
    done
}
