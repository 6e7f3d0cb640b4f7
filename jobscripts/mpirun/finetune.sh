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
(($# == 1)) || { echo "usage: $0 PROFILE" >&2; exit 2; }
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
source "$here/launch.sh"
source "$here/profile.sh"
source "$here/stages.sh"
read_profile "$1"
# shellcheck disable=SC2034  # for stages.sh
training=chat

while :; do
    may_start "mpirun-$$" || exit 1
    code=0
    finetune_stage "" || code=$?
    # shellcheck disable=SC2154  # set by launch.sh
    [[ $code == 75 && -z $stop_asked ]] || exit "$code"
done
