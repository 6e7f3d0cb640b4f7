#!/usr/bin/env bash
# tokenize -> preflight -> pretrain -> finetune -> evaluate -> convert under mpirun, on this machine or the hosts of a
# hostfile. What is done already is not done again, so a chain that was stopped goes on by the same command.
#
#   mpirun/chain.sh PROFILE
set -euo pipefail
(($# == 1)) || { echo "usage: $0 PROFILE" >&2; exit 2; }
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
profile=$(realpath "$1")

# A signal to this script is for the stage under way and what that runs.
stage=
stop_asked=
pass_on_stop() {
    stop_asked=1
    [[ -z $stage ]] || kill -TERM -- "-$stage" 2>/dev/null || true
}
trap pass_on_stop USR1 TERM INT HUP
for name in tokenize preflight pretrain finetune evaluate convert; do
    [[ -z $stop_asked ]] || exit 75
    printf '\n== %s\n' "$name"
    # In a session of its own, so that Ctrl-C reaches it once, through this script, and the signal has a group to go to.
    setsid "$here/$name.sh" "$profile" &
    stage=$!
    code=0
    while :; do
        code=0
        wait "$stage" || code=$?
        kill -0 "$stage" 2>/dev/null || break
    done
    code=0
    wait "$stage" || code=$?
    stage=
    ((code == 0)) || { echo "chain.sh: $name ended with exit code $code" >&2; exit "$code"; }
done
