#!/usr/bin/env bash
# Submits tokenize -> pretrain -> finetune -> evaluate -> convert to Slurm, each to start when the one before has succeeded, and prints a line
# a job: stage and job id.
#
#   slurm/chain.sh [--dry-run] [--from STAGE] [--only STAGE] [--after JOB] PROFILE
#
#   --dry-run      prints the commands instead
#   --from STAGE   begins with pretrain, finetune, evaluate or convert
#   --only STAGE   submits that one alone
#   --after JOB    the first begins once that job has succeeded
#
# A job that is queued again keeps its id, so those after it wait for its last turn. Where one fails, those after it are
# cancelled. The log of a job is in the run folder, as tandem-STAGE-ID.log.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
source "$here/../mpirun/launch.sh"
source "$here/../mpirun/profile.sh"

usage() { echo "usage: $0 [--dry-run] [--from|--only tokenize|pretrain|finetune|evaluate|convert] [--after JOB] PROFILE" >&2; exit 2; }
dry_run='' previous=''
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
        --only)
            [[ ${2:-} =~ ^(tokenize|pretrain|finetune|evaluate|convert)$ ]] || usage
            stages=("$2")
            shift 2
            ;;
        --after) previous=${2:?}; shift 2 ;;
        -*) usage ;;
        *) break ;;
    esac
done
(($# == 1)) || usage
read_profile "$1"
# shellcheck disable=SC2154  # the settings come from read_profile
((${#conversations[@]} > 0)) || mapfile -t stages < <(printf '%s\n' "${stages[@]}" | grep -vx finetune)

for stage in "${stages[@]}"; do
    # shellcheck disable=SC2154  # the settings come from read_profile
    [[ $stage != convert || ${#exports[@]} -gt 0 ]] || continue # nothing to make
    time=${stage}_time
    # shellcheck disable=SC2154  # the settings come from read_profile
    environment=ALL,TANDEM_FOLDER=$PWD${TANDEM_RECIPE:+,TANDEM_RECIPE=$TANDEM_RECIPE}${TANDEM_SEED:+,TANDEM_SEED=$TANDEM_SEED}
    command=(sbatch --parsable --nodes="$nodes" --ntasks-per-node="$ranks_per_node" --cpus-per-task="$threads"
        --time="${!time}" --output="$run/%x-%j.log" --export="$environment")
    [[ -z $partition ]] || command+=(--partition="$partition")
    [[ -z $account ]] || command+=(--account="$account")
    [[ ! -s $run/bad-nodes ]] || command+=(--exclude="$(cut -d ' ' -f 1 "$run/bad-nodes" | sort -u | paste -sd,)")
    # afterok: once that job has succeeded; kill-on-invalid-dep: once it cannot any more, this one is cancelled.
    [[ -z $previous ]] || command+=(--dependency="afterok:$previous" --kill-on-invalid-dep=yes)
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
done
