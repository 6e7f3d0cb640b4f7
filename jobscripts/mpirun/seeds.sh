# shellcheck shell=bash
# Lists of seeds, as Slurm writes the tasks of an array: 1,2,3 or 1-8, or 1-8%2 for two at a time. To be sourced.
#
#   demand_seeds LIST     exits with 2 where it is none, or names a seed twice
#   list_seeds LIST       a line a seed

demand_seeds() {
    local twice
    if [[ ! $1 =~ ^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*(%[1-9][0-9]*)?$ || -z $(list_seeds "$1") ]]; then
        echo "--seeds: '$1' is no list of whole numbers such as 1,2,3 or 1-8 or 1-8%2" >&2
        exit 2
    fi
    twice=$(list_seeds "$1" | sort -n | uniq -d | head -n 1)
    [[ -z $twice ]] || { echo "--seeds: '$1' names the seed $twice twice" >&2; exit 2; }
}

list_seeds() {
    local part parts
    IFS=, read -ra parts <<<"${1%%%*}"
    for part in "${parts[@]}"; do seq "${part%-*}" "${part#*-}"; done
}
