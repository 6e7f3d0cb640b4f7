#!/usr/bin/env bash
# Installs what Tandem is built from and runs with, on Debian 12 and Ubuntu 24.04, x86-64 and aarch64.
#
#   install-deps.sh [--cluster]      --cluster adds what the tests on a real Slurm need
#
# Does nothing when everything is there already. Needs root (or sudo) otherwise.
set -euo pipefail

packages=(
    g++ cmake ninja-build pkg-config python3 git
    openmpi-bin libopenmpi-dev libhdf5-openmpi-dev hdf5-tools
    openssh-client # with which mpirun reaches the other hosts
    libboost-log-dev libboost-thread-dev libboost-context-dev
    libcli11-dev nlohmann-json3-dev
    libhwy-dev libopenblas-openmp-dev
    libxxhash-dev libzstd-dev zlib1g-dev libutf8proc-dev
    libgtest-dev
)
case $(uname -m) in
    x86_64) packages+=(libdnnl-dev) ;;
    aarch64) ;;
    *) echo "install-deps.sh: $(uname -m) is neither x86_64 nor aarch64" >&2; exit 2 ;;
esac
for argument in "$@"; do
    case $argument in
        --cluster) packages+=(slurmctld slurmd slurm-client munge bc iproute2) ;;
        *) echo "install-deps.sh: unknown option $argument" >&2; exit 2 ;;
    esac
done

missing=()
for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
    echo "install-deps.sh: everything is installed"
    exit 0
fi

as_root=()
if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "install-deps.sh: run as root, to install: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
echo "install-deps.sh: installing ${missing[*]}"
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
