#!/usr/bin/env bash
# Under mpirun, on this machine or the hosts of a hostfile: measures the newest checkpoint on val.h5 (evaluation.json) and lets it write (samples.json).
#
#   mpirun/evaluate.sh PROFILE
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
(($# == 1)) || { echo "usage: $0 PROFILE" >&2; exit 2; }
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
source "$here/launch.sh"
source "$here/profile.sh"
source "$here/stages.sh"
read_profile "$1"
evaluate_stage
