#!/usr/bin/env bash
# Under mpirun, on this machine or the hosts of a hostfile: trains a tokenizer (unless the profile names one) and makes train.h5 and val.h5.
#
#   mpirun/tokenize.sh PROFILE
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/begin.sh"
tokenize_stage
