#!/usr/bin/env bash
# Under mpirun, on this machine or the hosts of a hostfile: writes the newest checkpoint as other programs read it: the profile's exports, Hugging Face folders and GGUF files.
#
#   mpirun/convert.sh PROFILE
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/begin.sh"
convert_stage
