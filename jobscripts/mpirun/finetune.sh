#!/usr/bin/env bash
# Finetunes on the profile's conversations under mpirun, on this machine or the hosts of a hostfile; goes on where an earlier call stopped.
#
#   mpirun/finetune.sh PROFILE
#
# Exit code 75 (stopped by --time-limit after a complete checkpoint) starts it again, unless this script itself was told
# to stop (Ctrl-C, TERM, USR1): then it saves and this script ends with 75. A second Ctrl-C ends it without saving.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/begin.sh"
# shellcheck disable=SC2034  # for stages.sh
training=chat
run_until_done finetune_stage
