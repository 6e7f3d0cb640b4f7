#!/usr/bin/env bash
# Submits tokenize -> pretrain -> finetune -> evaluate -> convert to Slurm, each to start when the one before has succeeded, and prints a line
# a job: stage and job id.
#
#   slurm/chain.sh [--dry-run] [--from STAGE] [--seeds LIST] PROFILE
#
#   --dry-run      prints the commands instead
#   --from STAGE   begins with pretrain, finetune, evaluate or convert
#   --seeds LIST   a run for each seed (1,2,3 or 1-8; 1-8%2: two at a time): from pretrain on each stage is an array, whose
#                  tasks are the seeds, and a task begins once the same seed's task of the stage before has succeeded
#
# A job that is queued again keeps its id, so those after it wait for its last turn. Where one fails, those after it are
# cancelled. The log of a job is in the run folder (of its seed), as tandem-STAGE-ID.log.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
source "$here/../mpirun/launch.sh"
source "$here/../mpirun/profile.sh"
source "$here/../mpirun/seeds.sh"

usage() { echo "usage: $0 [--dry-run] [--from tokenize|pretrain|finetune|evaluate|convert] [--seeds LIST] PROFILE" >&2; exit 2; }
dry_run='' previous='' previous_has_seeds='' seeds=''
stages=(tokenize pretrain finetune evaluate convert)
while (($#)); do
    case $1 in
        --dry-run) dry_run=1; shift ;;
        --from)
            case ${2:-} in
                tokenize) ;;
                pretrain) stages=(pretrain finetune evaluate convert) ;;
                finetune) stages=(finetune evaluate convert) ;;
                evaluate) stages=(evaluate convert) ;;
                convert) stages=(convert) ;;
                *) usage ;;
            esac
            shift 2
            ;;
        --seeds)
            seeds=${2:-}
            demand_seeds "$seeds"
            shift 2
            ;;
        -*) usage ;;
        *) break ;;
    esac
done
(($# == 1)) || usage
read_profile "$1"
# shellcheck disable=SC2154  # the settings come from read_profile
((${#conversations[@]} > 0)) || mapfile -t stages < <(printf '%s\n' "${stages[@]}" | grep -vx finetune)

# Slurm makes no folders for logs.
if [[ -n $seeds && -z $dry_run ]]; then
    while read -r seed; do mkdir -p "$run/seed-$seed"; done < <(list_seeds "$seeds")
fi

log_folder=${run//%/%%} # a % alone is a pattern to sbatch
for stage in "${stages[@]}"; do
    # shellcheck disable=SC2154  # the settings come from read_profile
    [[ $stage != convert || ${#exports[@]} -gt 0 ]] || continue # nothing to make
    time=${stage}_time
    # By the environment, as a list in --export would be parted at the commas of a path.
    # shellcheck disable=SC2154  # the settings come from read_profile
    command=(env TANDEM_FOLDER="$PWD" ${TANDEM_RECIPE:+TANDEM_RECIPE="$TANDEM_RECIPE"} sbatch --parsable --export=ALL
        --nodes="$nodes" --ntasks-per-node="$ranks_per_node" --cpus-per-task="$threads" --time="${!time}")
    has_seeds=
    [[ -z $seeds || $stage == tokenize ]] || has_seeds=1
    if [[ -n $has_seeds ]]; then
        command+=(--array="$seeds" --output="$log_folder/seed-%a/%x-%A.log")
    else
        command+=(--output="$log_folder/%x-%j.log")
    fi
    [[ -z $partition ]] || command+=(--partition="$partition")
    [[ -z $account ]] || command+=(--account="$account")
    [[ -z $(bad_nodes) ]] || command+=(--exclude="$(bad_nodes | paste -sd,)")
    # afterok: once that job has succeeded, aftercorr: once its task of the same number has; kill-on-invalid-dep: once it
    # cannot any more, this one is cancelled.
    after=afterok
    [[ -z $previous_has_seeds ]] || after=aftercorr
    [[ -z $previous ]] || command+=(--dependency="$after:$previous" --kill-on-invalid-dep=yes)
    command+=("${sbatch_options[@]}" "jobscripts/slurm/$stage.sbatch" "$profile")
    if [[ -n $dry_run ]]; then
        printf '%q ' "${command[@]}"
        printf '\n'
        previous="<$stage>"
    else
        previous=$("${command[@]}")
        previous=${previous%%;*} # "id;cluster" where there are several clusters
        echo "$stage $previous"
    fi
    previous_has_seeds=$has_seeds
done
