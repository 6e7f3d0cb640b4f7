#!/usr/bin/env bash
# Under mpirun, on this machine or the hosts of a hostfile: measures the newest checkpoint on val.h5 (evaluation.json) and lets it write (samples.json).
#
#   mpirun/evaluate.sh PROFILE
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/begin.sh"
evaluate_stage
