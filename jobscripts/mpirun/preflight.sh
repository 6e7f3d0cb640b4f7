#!/usr/bin/env bash
# Under mpirun, on this machine or the hosts of a hostfile: is every node fit for pretrain? The table is left in preflight.txt; exit
# code 4 is a no-go.
#
#   mpirun/preflight.sh PROFILE
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
(($# == 1)) || { echo "usage: $0 PROFILE" >&2; exit 2; }
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
source "$here/launch.sh"
source "$here/profile.sh"
source "$here/stages.sh"
read_profile "$1"
preflight_stage
