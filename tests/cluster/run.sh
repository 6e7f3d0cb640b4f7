#!/usr/bin/env bash
# All tests of the job scripts, on hosts and a Slurm cluster that they set up on this machine; the last line says that all
# passed. Under three minutes.
#
#   tests/cluster/run.sh [--bin FOLDER]      FOLDER has the executables; build/cpu/bin where none is given
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
"$here/cut_link.sh" "$@"
"$here/slurm.sh" "$@"
