#!/usr/bin/env bash
# The same model, data and tokens, trained by three methods: (a) Hugging Face's Trainer, the default path; (b) ours with mixed
# precision and plain all-reduce data parallel; (c) ours, sharded as planned. Prints a table of time, memory, largest micro
# batch, loss, and speed and latency of generation. About a quarter of an hour; nothing else should run meanwhile.
#
#   tests/bench/three_methods.sh [--link RATE] [three_methods.py's options]
#
#   --link 1gbit     two hosts, network namespaces of this machine, with a link of that rate between them; needs root
#   --largest        instead, how many rows of GPT-2 124M train at once in 8 GiB, on one rank
#
# three_methods.py --help lists the rest: --model, --steps, --turns, --budget, --precision, ... Installs torch and transformers
# into build/peers unless --python names a Python that has them, and builds the cpu preset, or cuda where there is a GPU.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
link='' python='' options=()
while (($#)); do
    case $1 in
        --link) link=${2:?"three_methods.sh: --link needs a rate, such as 1gbit"}; shift 2 ;;
        --python) python=${2:?"three_methods.sh: --python needs a path"}; shift 2 ;;
        *) options+=("$1"); shift ;;
    esac
done
preset=cpu
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then preset=cuda; fi

jobscripts/install-deps.sh >&2
if [[ -z $python ]]; then
    python=build/peers/venv/bin/python
    mkdir -p build/peers
    [[ -x $python ]] || python3 -m venv build/peers/venv
    "$python" -c 'import accelerate, torch, transformers' 2>/dev/null ||
        "$python" -m pip install --quiet torch transformers accelerate numpy
fi
mkdir -p build
cmake --preset $preset >build/three-methods-configure.log || { cat build/three-methods-configure.log >&2; exit 1; }
cmake --build --preset $preset --target pretrain finetune evaluate tokenize checkpoint-convert make-stories training_rows >&2

if [[ -n $link ]]; then
    source tests/cluster/network_hosts.sh
    export TANDEM_HOSTS=three$$- # for host_agent.sh
    subnet=10.83.$(($$ % 250))
    trap 'hosts_down "$TANDEM_HOSTS"' EXIT
    trap 'exit 1' INT TERM
    hosts_up "$TANDEM_HOSTS" "$subnet"
    limit_links "$TANDEM_HOSTS" "$link"
    options+=(--subnet "$subnet")
    echo "two hosts, $link between them"
fi
"$python" tests/bench/three_methods.py --build build/$preset "${options[@]}"
