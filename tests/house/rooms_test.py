"""The rule of the rooms, checked on every include line of common/, kernels/ and apps/.

A room uses only rooms above it, the kernels use only base, what is private stays in its room, and each foreign library
has one home. Run by ctest; first proves on made-up trees that every rule is noticed when broken.

    python3 tests/house/rooms_test.py            # the tree that this file is part of
"""

import pathlib
import re
import sys
import tempfile
import unittest

# From top to bottom.
ROOMS = ["base", "comm", "hdf5", "tokenizer", "data", "graph", "model", "sharding", "runtime", "optim", "checkpoint",
         "telemetry", "train"]
# The rooms from here on run operators; those above know nothing of them.
FIRST_ROOM_WITH_KERNELS = "graph"

# Which folders may include a header of a foreign library.
HOMES = [
    (r"mpi\.h|mpi-ext\.h", ["common/comm"]),
    (r"nccl\.h", ["common/comm"]),
    (r"cuda_\w+\.h|cuda\.h|nvml\.h|simt/.*", ["kernels/cuda"]),
    (r"hdf5(_hl)?\.h|H5\w*\.h", ["common/hdf5"]),
    (r"cblas\.h|lapacke\.h|dnnl.*|oneapi/.*|mkl.*|hwy/.*|cublas.*|cudnn.*", ["kernels"]),
    (r"omp\.h", ["kernels", "apps/shared"]),  # the programs hand --threads to OpenMP
    (r"CLI/.*", ["apps"]),
    (r"gtest/.*|gmock/.*|benchmark/.*", ["tests"]),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SOURCES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}


def includes_of(path):
    """(line number, included path, whether it stands in quotes) of each include line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) or match.group(2), match.group(1) is not None


def is_inside(path, folder):
    return path.startswith(folder + "/")


def house_of(path):
    """The folder that a file belongs to: common/data, kernels/cpu, kernels (the contract), apps/tokenize, ..."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def complaint_about_room(file, target):
    """Why `file` must not include the file `target` of ours; None if it may."""
    here, there = house_of(file), house_of(target)
    if here == there:
        return None
    if "/detail/" in target:
        return f"{target} is private to {there}"
    if target.startswith(("apps/", "tests/")):
        return None if there == "apps/shared" and here.startswith("apps/") else f"nothing outside {there} uses it"
    if here.startswith("apps"):
        return None
    if here.startswith("kernels"):
        return None if there in ("kernels", "common/base") else "kernels use only the contract, base, and their own folder"
    room = here.removeprefix("common/")
    if room not in ROOMS:
        return f"{here} is no room; add it to ROOMS in the order of the dependency rule"
    if there == "kernels":
        allowed = ROOMS.index(room) >= ROOMS.index(FIRST_ROOM_WITH_KERNELS)
        return None if allowed else f"{room} knows no kernels"
    if there.startswith("kernels/"):
        return f"{there} is one implementation of the contract in kernels/backend.h; include that"
    other = there.removeprefix("common/")
    if other not in ROOMS:
        return f"{there} is no room"
    return None if ROOMS.index(other) < ROOMS.index(room) else f"{other} is below {room}; a room uses only rooms above it"


def complaint_about_library(file, included):
    """Why `file` must not include the foreign header; None if it may."""
    for pattern, homes in HOMES:
        if re.fullmatch(pattern, included) and not any(is_inside(file, home) for home in homes):
            return f"<{included}> is at home only in {' and '.join(homes)}"
    return None


def complaint_about_order(root):
    """The rooms in common/CMakeLists.txt have to be those of ROOMS, in their order; None if they are."""
    lists = root / "common" / "CMakeLists.txt"
    if not lists.exists():
        return None
    built = re.findall(r"^tandem_room\((\w+)", lists.read_text(encoding="utf-8"), re.MULTILINE)
    expected = [room for room in ROOMS if room != "base"]  # built with the kernels, which use it
    return None if built == expected else f"common/CMakeLists.txt builds {built}, the rule's order is {expected}"


def complaints(root):
    """Everything that breaks the rule below `root`, a line each: file, line, include, reason."""
    found = []
    for path in sorted(path for top in ("common", "kernels", "apps") for path in (root / top).rglob("*")):
        if path.suffix not in SOURCES:
            continue
        file = path.relative_to(root).as_posix()
        for number, included, quoted in includes_of(path):
            ours = (root / included).is_file()
            reason = complaint_about_room(file, included) if ours else complaint_about_library(file, included)
            if quoted and not ours and not included.startswith("hwy/"):
                reason = reason or "is not found from the root; includes name files by their path from there"
            if reason:
                found.append(f"{file}:{number}: {included}: {reason}")
    order = complaint_about_order(root)
    return found + ([order] if order else [])


class TheRuleIsNoticedWhenBroken(unittest.TestCase):
    """Each test makes a small tree of its own."""

    def complaints_about(self, includer, line, also=()):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in (includer, *also):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("#pragma once\n", encoding="utf-8")
            (root / includer).write_text(line + "\n", encoding="utf-8")
            return complaints(root)

    def assert_allowed(self, includer, line, also=()):
        self.assertEqual(self.complaints_about(includer, line, also), [])

    def assert_refused(self, includer, line, also=()):
        found = self.complaints_about(includer, line, also)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{includer}:1: "), found)

    def test_a_room_uses_rooms_above_it_only(self):
        self.assert_allowed("common/data/a.cpp", '#include "common/hdf5/b.h"', ["common/hdf5/b.h"])
        self.assert_refused("common/hdf5/a.cpp", '#include "common/data/b.h"', ["common/data/b.h"])
        self.assert_refused("common/comm/a.h", ' # include "common/hdf5/b.h"', ["common/hdf5/b.h"])
        self.assert_refused("common/optim/a.h", '#include <common/train/b.h>', ["common/train/b.h"])
        self.assert_allowed("common/data/a.cpp", '#include "common/data/b.h"', ["common/data/b.h"])

    def test_no_room_uses_an_app_or_a_test(self):
        self.assert_refused("common/train/a.cpp", '#include "apps/shared/b.h"', ["apps/shared/b.h"])
        self.assert_refused("common/train/a.cpp", '#include "tests/b.h"', ["tests/b.h"])

    def test_a_folder_of_common_is_a_room(self):
        self.assert_refused("common/extra/a.h", '#include "common/base/b.h"', ["common/base/b.h"])
        self.assert_refused("common/train/a.h", '#include "common/extra/b.h"', ["common/extra/b.h"])

    def test_kernels_use_base_only(self):
        self.assert_allowed("kernels/cpu/a.cpp", '#include "common/base/b.h"', ["common/base/b.h"])
        self.assert_allowed("kernels/cpu/a.cpp", '#include "kernels/backend.h"', ["kernels/backend.h"])
        self.assert_refused("kernels/cpu/a.cpp", '#include "common/comm/b.h"', ["common/comm/b.h"])
        self.assert_refused("kernels/backend.h", '#include "common/graph/b.h"', ["common/graph/b.h"])

    def test_an_implementation_of_the_kernels_is_used_by_nobody(self):
        self.assert_refused("kernels/cpu/a.cpp", '#include "kernels/reference/b.h"', ["kernels/reference/b.h"])
        self.assert_refused("kernels/backend.h", '#include "kernels/cpu/b.h"', ["kernels/cpu/b.h"])
        self.assert_refused("common/runtime/a.cpp", '#include "kernels/cpu/b.h"', ["kernels/cpu/b.h"])

    def test_only_rooms_from_graph_on_use_kernels(self):
        self.assert_allowed("common/graph/a.cpp", '#include "kernels/backend.h"', ["kernels/backend.h"])
        self.assert_refused("common/data/a.cpp", '#include "kernels/backend.h"', ["kernels/backend.h"])

    def test_what_is_private_stays_in_its_room(self):
        self.assert_refused("common/train/a.cpp", '#include "common/comm/detail/b.h"', ["common/comm/detail/b.h"])
        self.assert_refused("apps/tokenize/a.cpp", '#include "common/comm/detail/b.h"', ["common/comm/detail/b.h"])
        self.assert_allowed("common/comm/a.cpp", '#include "common/comm/detail/b.h"', ["common/comm/detail/b.h"])

    def test_apps_use_everything_but_each_other(self):
        self.assert_allowed("apps/tokenize/a.cpp", '#include "common/train/b.h"', ["common/train/b.h"])
        self.assert_allowed("apps/tokenize/a.cpp", '#include "apps/shared/b.h"', ["apps/shared/b.h"])
        self.assert_refused("apps/tokenize/a.cpp", '#include "apps/pretrain/b.h"', ["apps/pretrain/b.h"])

    def test_every_foreign_library_has_one_home(self):
        self.assert_allowed("common/comm/detail/a.h", "#include <mpi.h>")
        self.assert_refused("common/checkpoint/a.cpp", "#include <mpi.h>")
        self.assert_refused("apps/pretrain/a.cpp", '#include "mpi.h"')
        self.assert_allowed("common/hdf5/a.cpp", "#include <hdf5.h>")
        self.assert_refused("common/checkpoint/a.cpp", "#include <hdf5.h>")
        self.assert_refused("common/data/a.cpp", "#include <H5Fpublic.h>")
        self.assert_allowed("kernels/cpu/a.cpp", "#include <cblas.h>")
        self.assert_refused("common/optim/a.cpp", "#include <cblas.h>")
        self.assert_refused("common/runtime/a.cpp", "#include <dnnl.h>")
        self.assert_refused("common/data/a.cpp", "#include <omp.h>")
        self.assert_refused("common/data/a.cpp", '#include "hwy/highway.h"')
        self.assert_refused("common/data/a.cpp", "#include <gtest/gtest.h>")
        self.assert_allowed("common/data/a.cpp", "#include <vector>")

    def test_files_are_named_by_their_path_from_the_root(self):
        self.assert_refused("common/data/a.cpp", '#include "b.h"', ["common/data/b.h"])
        self.assert_refused("common/data/a.cpp", '#include "common/data/missing.h"')

    def test_the_build_has_the_rooms_in_the_order_of_the_rule(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "common").mkdir()
            names = [room for room in ROOMS if room != "base"]
            lists = root / "common" / "CMakeLists.txt"
            lists.write_text("".join(f"tandem_room({room} LIBRARIES x)\n" for room in names), encoding="utf-8")
            self.assertEqual(complaints(root), [])
            lists.write_text("".join(f"tandem_room({room} LIBRARIES x)\n" for room in names[::-1]), encoding="utf-8")
            self.assertEqual(len(complaints(root)), 1)


class TheHouse(unittest.TestCase):
    def test_keeps_the_rule(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        self.assertTrue((root / "common" / "base" / "error.h").is_file(), f"{root} is not the root of the sources")
        self.assertEqual(complaints(root), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
