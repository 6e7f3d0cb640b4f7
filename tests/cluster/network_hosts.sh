# shellcheck shell=bash
# Two hosts on this one machine, as network namespaces on a bridge. To be sourced. Needs root.
#
#   hosts_up PREFIX SUBNET       hosts 1 and 2 with the addresses SUBNET.1 and SUBNET.2, in the namespaces PREFIX1 and PREFIX2
#   hosts_down PREFIX            ends what runs on them and removes them
#   on_host PREFIX K COMMAND...  runs a command on host K, named hK
#   cut_link PREFIX K            from now on packets to and from host K are lost without a word
#   heal_link PREFIX K
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
processes_on() { ip netns pids "$1$2" 2>/dev/null; }

on_host() {
    local prefix=$1 k=$2
    shift 2
    # shellcheck disable=SC2016  # for the inner shell
    nsenter --net="/run/netns/$prefix$k" unshare --uts sh -c 'hostname "$0" && exec "$@"' "h$k" "$@"
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
