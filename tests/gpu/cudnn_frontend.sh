#!/usr/bin/env bash
# Puts the headers of cudnn-frontend into a folder, so that attention by cuDNN is compiled where no package of the system
# has them: they are in a package of PyPI. Does nothing where they are there already.
#
#   tests/gpu/cudnn_frontend.sh FOLDER        then export CUDNN_FRONTEND_PATH=FOLDER for CMake
set -euo pipefail
folder=${1:?"usage: cudnn_frontend.sh FOLDER"}
[[ ! -f $folder/include/cudnn_frontend.h ]] || exit 0
mkdir -p "$folder"
python3 -m pip --quiet --disable-pip-version-check download --no-deps --dest "$folder" nvidia-cudnn-frontend
python3 - "$folder" <<'P'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith("include/")])
    wheel.unlink()
P
