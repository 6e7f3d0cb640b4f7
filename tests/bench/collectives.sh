#!/usr/bin/env bash
# The ways of a sum over ranks on two hosts with a link of a given rate: network namespaces of this machine. Needs root.
#
#   tests/bench/collectives.sh [RATE] [RANKS_PER_HOST] [TIMES]      1gbit, 1 and 3 by default
#
# Builds collectives_bench in build/cpu where it is missing. Leaves nothing behind.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
source "$tree/tests/cluster/network_hosts.sh"
rate=${1:-1gbit}
slots=${2:-1}
times=${3:-3}
bench=$tree/build/cpu/tests/collectives_bench
[[ -x $bench ]] || ninja -C "$tree/build/cpu" collectives_bench >/dev/null

export TANDEM_HOSTS=bench$$-
subnet=10.84.$(($$ % 250))
folder=$(mktemp -d /tmp/tandem-bench.XXXXXX)
finish() {
    hosts_down "$TANDEM_HOSTS"
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' INT TERM

hosts_up "$TANDEM_HOSTS" "$subnet"
limit_links "$TANDEM_HOSTS" "$rate"
printf "%s slots=$slots\n" "$subnet.1" "$subnet.2" >"$folder/hosts"
echo "two hosts, $slots ranks each, $rate between them"
mpirun_on_hosts "$TANDEM_HOSTS" "$subnet" "$folder/hosts" "$bench" "$times"
