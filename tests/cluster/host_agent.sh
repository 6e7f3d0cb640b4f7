#!/usr/bin/env bash
# What ssh is between real hosts: host_agent.sh ADDRESS COMMAND... runs it on the host of network_hosts.sh whose address
# ends in its number; TANDEM_HOSTS is their prefix.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/network_hosts.sh"
address=$1
shift
on_host "$TANDEM_HOSTS" "${address##*.}" sh -c "$*" </dev/null
