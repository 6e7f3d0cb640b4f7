#!/usr/bin/env bash
# Under mpirun, on this machine or the hosts of a hostfile: writes the newest checkpoint as other programs read it: the profile's exports, Hugging Face folders and GGUF files.
#
#   mpirun/convert.sh PROFILE
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
(($# == 1)) || { echo "usage: $0 PROFILE" >&2; exit 2; }
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
source "$here/launch.sh"
source "$here/profile.sh"
source "$here/stages.sh"
read_profile "$1"
convert_stage
