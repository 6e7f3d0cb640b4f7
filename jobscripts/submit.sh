#!/usr/bin/env bash
# Submits a run: the stages of a profile, with the options of a recipe, to Slurm, or to this machine and the profile's
# hosts where there is no Slurm.
#
#   jobscripts/submit.sh --profile P [--recipe R] [--seeds LIST] [--from STAGE] [--dry-run]
#
#   --profile P    a file, or the name of one in jobscripts/profiles: where it runs, and what with
#   --recipe R     a file of pretrain's options, or the name of one in data/recipes; instead of the profile's
#                  pretrain_options
#   --seeds LIST   a run for each seed (1,2,3 or 1-8), in seed-N of the profile's run folder, all on the same tokens. Under
#                  Slurm each stage is an array job with a task a seed; 1-8%2: two of them at a time
#   --from STAGE   begins with pretrain, finetune, evaluate or convert
#   --dry-run      prints what would be submitted
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")

usage() {
    sed -n 's/^#   jobscripts/usage: jobscripts/p' "$0" >&2
    exit 2
}

# An existing file, or the one of that name in a folder.
find_file() { # NAME FOLDER SUFFIX
    local file
    for file in "$1" "$2/$1" "$2/$1$3"; do
        [[ ! -f $file ]] || { realpath "$file"; return; }
    done
    echo "there is no '$1', nor one in $2: $(cd "$2" && echo *"$3")" >&2
    exit 2
}

profile='' chain_options=()
while (($#)); do
    case $1 in
        --profile | --recipe | --seeds | --from) (($# > 1)) || usage ;;&
        --profile) profile=$(find_file "$2" "$here/profiles" .env); shift 2 ;;
        --recipe) TANDEM_RECIPE=$(find_file "$2" "$here/../data/recipes" .toml); export TANDEM_RECIPE; shift 2 ;;
        --seeds | --from) chain_options+=("$1" "$2"); shift 2 ;;
        --dry-run) chain_options+=("$1"); shift ;;
        *) usage ;;
    esac
done
[[ -n $profile ]] || usage
batch_system=mpirun
! command -v sbatch >/dev/null || batch_system=slurm
exec "$here/$batch_system/chain.sh" "${chain_options[@]}" "$profile"
