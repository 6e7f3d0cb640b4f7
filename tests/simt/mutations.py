"""Proves that the tests of the CUDA kernels can fail: breaks the kernels in many small ways, one at a time, and demands
that the operator harness on the emulated device, or the test program that an entry names, notices each.

    python3 tests/simt/mutations.py BUILD            # all of mutations.json
    python3 tests/simt/mutations.py BUILD --quick    # those marked so, which CI runs

BUILD is a configured build folder in which the programs were built. Each entry of mutations.json names a file below
kernels/cuda, a text that stands in it exactly once and what takes its place, what of the kernel that breaks (a barrier,
a mask, an index...), the tests that must then fail, of the harness or of a "program", and the environment that they
need for it (the order of threads: most missing barriers show only in some). A header also names the source file that is
compiled with it. Nothing in the tree is touched: the broken file lies in a folder that the compiler searches first, and
its object is linked before the library that holds the sound one.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HARNESS = "tests/operators_simt_test"


def fail(message):
    print(f"mutations.py: {message}", file=sys.stderr)
    sys.exit(2)


def mutated(entry):
    """The text of the broken file; the entry has to fit the tree."""
    text = (ROOT / entry["file"]).read_text(encoding="utf-8")
    if text.count(entry["from"]) != 1:
        fail(f"{entry['file']} holds {text.count(entry['from'])} times, not once: {entry['from']!r}")
    return text.replace(entry["from"], entry["to"])


def compile_command(build, source):
    """The command and folder by which the build compiles a source of the emulated CUDA library."""
    for command in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        if command["file"] == str(ROOT / source) and "tandem_cuda_emulated" in command["command"]:
            return shlex.split(command["command"]), command["directory"]
    fail(f"{build}/compile_commands.json does not compile {source} for the emulated device")


def link_command(build, program):
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", program], check=True, text=True,
                              capture_output=True).stdout.splitlines()
    # CMake writes ": && COMMAND && :".
    return shlex.split(commands[-1].removeprefix(": && ").removesuffix(" && :"))


def compile_mutant(entry, build, folder):
    """The object file of the broken source."""
    broken = folder / entry["file"]
    broken.parent.mkdir(parents=True)
    broken.write_text(mutated(entry), encoding="utf-8")
    source = entry.get("source", entry["file"])
    command, directory = compile_command(build, source)
    target = folder / "mutant.o"
    command[command.index("-o") + 1] = str(target)
    if source == entry["file"]:
        command[command.index(str(ROOT / source))] = str(broken)
    # A mutant may leave variables unused.
    command[1:1] = [f"-I{folder}"]
    command += ["-w", "-MD", "-MF", str(folder / "mutant.d")]
    subprocess.run(command, cwd=directory, check=True)
    return target


def link_mutant(entry, build, target, folder):
    command = link_command(build, entry.get("program", HARNESS))
    program = folder / "mutant"
    command[command.index("-o") + 1] = str(program)
    first_library = next(i for i, word in enumerate(command) if word.endswith(".a"))
    command.insert(first_library, str(target))
    subprocess.run(command, cwd=build, check=True)
    return program


def run(program, entry):
    """Whether the tests pass; a crash, a hang and an error of the emulator are failures."""
    environment = {**os.environ, "SIMT_THREADS": "1", **entry.get("environment", {})}
    try:
        result = subprocess.run([program, f"--gtest_filter={entry['tests']}", "--gtest_brief=1",
                                 "--gtest_fail_fast"], env=environment, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return False
    if result.returncode == 0 and ("0 tests ran" in result.stdout or "PASSED  ] 0 tests" in result.stdout):
        fail(f"no test fits {entry['tests']}")
    return result.returncode == 0


def judge(entry, build):
    """Whether the mutation is caught, by tests that pass without it."""
    if not run(build / entry.get("program", HARNESS), entry):
        raise SystemExit(f"mutations.py: the sound kernels fail {entry['tests']} already")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        return not run(link_mutant(entry, build, compile_mutant(entry, build, folder), folder), entry)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="only the entries that are marked quick")
    parser.add_argument("--only", default="", help="only entries whose file or description holds this text")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    entries = json.loads((pathlib.Path(__file__).parent / "mutations.json").read_text(encoding="utf-8"))
    chosen = [entry for entry in entries if (entry.get("quick") or not arguments.quick)
              and arguments.only in entry["file"] + entry["breaks"]]
    for entry in chosen:
        mutated(entry)  # every entry has to fit, before minutes are spent
    survivors = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for entry, caught in zip(chosen, pool.map(lambda entry: judge(entry, build), chosen)):
            survivors += not caught
            print(f"{'caught  ' if caught else 'SURVIVED'}  {entry['file']}: {entry['breaks']}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations caught")
    sys.exit(1 if survivors or not chosen else 0)


if __name__ == "__main__":
    main()
