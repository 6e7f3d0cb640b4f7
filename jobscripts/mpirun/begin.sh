# shellcheck shell=bash
# How the script of a stage begins: what it needs, and the profile that is the script's own argument. To be sourced.
#
#   run_until_done STAGE      runs a stage that trains, again as long as it ends with 75 (stopped by --time-limit after a
#                             complete checkpoint), unless the script itself was told to stop; exits with its exit code
#
# shellcheck source-path=SCRIPTDIR
(($# == 1)) || { echo "usage: $0 PROFILE" >&2; exit 2; }
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
source "$here/launch.sh"
source "$here/profile.sh"
source "$here/stages.sh"
read_profile "$1"

run_until_done() {
    local code
    while :; do
        may_start "mpirun-$$" || exit 1
        code=0
        "$1" "" || code=$?
        # shellcheck disable=SC2154  # set by launch.sh
        [[ $code == 75 && -z $stop_asked ]] || exit "$code"
    done
}
