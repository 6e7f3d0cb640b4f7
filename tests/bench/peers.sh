#!/usr/bin/env bash
# Prints the table of speed and memory beside the peers. Takes about half an hour; nothing else should run meanwhile.
#
#   tests/bench/peers.sh TEXT [peers.py's options: --rows NAME... --turns N]
#
# TEXT is a file of 50 MB or more of mixed text. Installs the peers into build/peers, and builds the cpu preset.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
text=${1:?"usage: peers.sh TEXT [options]"}
shift

jobscripts/install-deps.sh
venv=build/peers/venv
if [[ ! -x $venv/bin/python ]]; then
    mkdir -p build/peers
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet torch transformers numpy tiktoken rustbpe
fi
cmake --preset cpu >build/peers/configure.log
cmake --build --preset cpu --target tokenize --target pretrain
exec "$venv/bin/python" tests/bench/peers.py --bin build/cpu/bin --python "$venv/bin/python" --text "$text" "$@"
