#!/usr/bin/env bash
# Under mpirun, on this machine or the hosts of a hostfile: is every node fit for pretrain? The table is left in preflight.txt; exit
# code 4 is a no-go.
#
#   mpirun/preflight.sh PROFILE
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/begin.sh"
preflight_stage
