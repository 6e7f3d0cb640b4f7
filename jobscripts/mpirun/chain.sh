#!/usr/bin/env bash
# tokenize -> preflight -> pretrain -> finetune -> evaluate -> convert under mpirun, on this machine or the hosts of a
# hostfile. What is done already is not done again, so a chain that was stopped goes on by the same command.
#
#   mpirun/chain.sh [--dry-run] [--from STAGE] [--seeds LIST] PROFILE
#
#   --dry-run      prints the commands instead
#   --from STAGE   begins with preflight, pretrain, finetune, evaluate or convert
#   --seeds LIST   a chain for each seed (1,2,3 or 1-8), one after the other, in seed-N of the run folder, after the tokens
#                  for all of them
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
source "$here/seeds.sh"

usage() { echo "usage: $0 [--dry-run] [--from STAGE] [--seeds LIST] PROFILE" >&2; exit 2; }
stages=(tokenize preflight pretrain finetune evaluate convert)
dry_run='' seeds=('')
while (($# > 1)); do
    case $1 in
        --dry-run) dry_run=1; shift ;;
        --from)
            while ((${#stages[@]} > 0)) && [[ ${stages[0]} != "$2" ]]; do stages=("${stages[@]:1}"); done
            ((${#stages[@]} > 0)) || usage
            shift 2
            ;;
        --seeds)
            demand_seeds "$2"
            mapfile -t seeds < <(list_seeds "$2")
            shift 2
            ;;
        *) usage ;;
    esac
done
[[ $# == 1 && $1 != -* ]] || usage
profile=$(realpath "$1")

# A signal to this script is for the stage under way and what that runs.
stage=
stop_asked=
pass_on_stop() {
    stop_asked=1
    [[ -z $stage ]] || kill -TERM -- "-$stage" 2>/dev/null || true
}
trap pass_on_stop USR1 TERM INT HUP

run_stage() { # NAME
    local code
    [[ -z $stop_asked ]] || exit 75
    printf '\n== %s\n' "$1${TANDEM_SEED:+, seed $TANDEM_SEED}"
    # In a session of its own, so that Ctrl-C reaches it once, through this script, and the signal has a group to go to.
    setsid "$here/$1.sh" "$profile" &
    stage=$!
    while :; do
        wait "$stage" || true
        kill -0 "$stage" 2>/dev/null || break
    done
    code=0
    wait "$stage" || code=$?
    stage=
    ((code == 0)) || { echo "chain.sh: $1 ended with exit code $code" >&2; exit "$code"; }
}

do_stage() { # NAME
    if [[ -n $dry_run ]]; then
        echo "${TANDEM_RECIPE:+TANDEM_RECIPE=$TANDEM_RECIPE }${TANDEM_SEED:+TANDEM_SEED=$TANDEM_SEED }$here/$1.sh $profile"
    else
        run_stage "$1"
    fi
}

if [[ ${stages[0]} == tokenize ]]; then
    do_stage tokenize # once, whatever the seeds
    stages=("${stages[@]:1}")
fi
for seed in "${seeds[@]}"; do
    [[ -z $seed ]] || export TANDEM_SEED=$seed
    for name in "${stages[@]}"; do do_stage "$name"; done
done
