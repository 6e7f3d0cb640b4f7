#!/usr/bin/env bash
# Submits a run: the stages of a profile, with the options of a recipe, to Slurm, or to this machine and the profile's
# hosts where there is no Slurm.
#
#   jobscripts/submit.sh --profile P [--recipe R] [--seeds N,N...] [--from STAGE] [--dry-run]
#
#   --profile P    a file, or the name of one in jobscripts/profiles: where it runs, and what with
#   --recipe R     a file of pretrain's options, or the name of one in data/recipes; instead of the profile's
#                  pretrain_options
#   --seeds N,N    a run for each seed, in seed-N of the profile's run folder, all on the same tokens; under Slurm their
#                  chains run side by side
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

profile='' seeds=() chain_options=()
while (($#)); do
    case $1 in
        --profile | --recipe | --seeds | --from) (($# > 1)) || usage ;;&
        --profile) profile=$(find_file "$2" "$here/profiles" .env); shift 2 ;;
        --recipe) TANDEM_RECIPE=$(find_file "$2" "$here/../data/recipes" .toml); export TANDEM_RECIPE; shift 2 ;;
        --seeds) IFS=, read -ra seeds <<<"$2"; shift 2 ;;
        --from) chain_options+=("$1" "$2"); shift 2 ;;
        --dry-run) chain_options+=("$1"); shift ;;
        *) usage ;;
    esac
done
[[ -n $profile ]] || usage
for seed in "${seeds[@]}"; do
    [[ $seed =~ ^[0-9]+$ ]] || { echo "--seeds: '$seed' is no whole number" >&2; exit 2; }
done

if ! command -v sbatch >/dev/null; then
    ((${#chain_options[@]} == 0)) || { echo "there is no Slurm here; without it there is neither --dry-run nor --from" >&2; exit 2; }
    ((${#seeds[@]} > 0)) || exec "$here/mpirun/chain.sh" "$profile"
    for seed in "${seeds[@]}"; do TANDEM_SEED=$seed "$here/mpirun/chain.sh" "$profile"; done
    exit
fi
chain=$here/slurm/chain.sh
((${#seeds[@]} > 0)) || exec "$chain" "${chain_options[@]}" "$profile"
# The tokens are made once, for all.
if [[ " ${chain_options[*]} " != *" --from "* ]]; then
    tokenize=$("$chain" "${chain_options[@]}" --only tokenize "$profile")
    echo "$tokenize"
    chain_options+=(--from pretrain --after)
    [[ " ${chain_options[*]} " == *" --dry-run "* ]] && chain_options+=("<tokenize>") || chain_options+=("${tokenize##* }")
fi
for seed in "${seeds[@]}"; do
    echo "# seed $seed"
    TANDEM_SEED=$seed "$chain" "${chain_options[@]}" "$profile"
done
