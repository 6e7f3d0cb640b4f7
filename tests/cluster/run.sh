#!/usr/bin/env bash
# All tests of the job scripts, on hosts and a Slurm cluster that they set up on this machine (as root). About five minutes.
#
#   tests/cluster/run.sh [--bin FOLDER]      FOLDER has the executables; build/cpu/bin where none is given
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
"$here/../../jobscripts/install-deps.sh" --cluster

# Side by side, as they wait for time limits and time-outs most of the time.
names=(mpirun cut_link slow_link slurm)
tests=()
for name in "${names[@]}"; do
    "$here/$name.sh" "$@" 2>&1 | sed -u "s/^/$name: /" &
    tests+=($!)
done
failed=()
for i in "${!names[@]}"; do
    wait "${tests[i]}" || failed+=("${names[i]}")
done
((${#failed[@]} == 0)) || { echo "FAILED after $SECONDS s: ${failed[*]}" >&2; exit 1; }
echo "all passed after $SECONDS s"
