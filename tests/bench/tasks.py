#!/usr/bin/env python3
"""Puts evaluate tasks beside lm-evaluation-harness on the same model and the same local files.

    tests/bench/tasks.py HUGGING_FACE_FOLDER [--build build/cpu] [--files tests/golden/tasks] [--ranks N] [--limit N]

Needs what golden/make_tasks_golden.py needs. For each mode (plain, with examples, as a chat, both): all log
likelihoods, whether they are greedy, texts written, and the metrics. Ends with 1 where a log likelihood differs by more
than 1e-3, or anything else at all.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
import make_tasks_golden  # noqa: E402
import tasks_golden  # noqa: E402


def ours(options, mode):
    with tempfile.TemporaryDirectory() as temporary:
        log = pathlib.Path(temporary, "log.jsonl")
        command = ["mpirun", "-n", options.ranks, "--oversubscribe", "--bind-to", "none",
                   f"{options.build}/bin/evaluate", "tasks", "--checkpoint", options.model, "--json",
                   "--log-level", "warning", "--log", log, *tasks_golden.arguments(mode, options.files)]
        command += ["--limit", options.limit] if options.limit else []
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True, text=True)
        return json.loads(done.stdout), [json.loads(line) for line in log.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--build", default="build/cpu")
    parser.add_argument("--files", type=pathlib.Path, default=tasks_golden.FILES)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--modes", nargs="+", default=list(tasks_golden.MODES))
    options = parser.parse_args()
    make_tasks_golden.serve_local_files(options.files)
    manager = make_tasks_golden.TaskManager()
    model = make_tasks_golden.open_model(options.model)
    wrong = 0
    for mode in options.modes:
        comparison = tasks_golden.Comparison()
        comparison.compare(*ours(options, mode), make_tasks_golden.harness(model, mode, manager, options.limit))
        for difference in comparison.differences:
            print("differs:", difference)
        print(f"{mode}: {comparison.items} samples of {len(tasks_golden.tasks_of(mode))} tasks, largest difference of "
              f"a log likelihood {comparison.largest:.2e}, {len(comparison.differences)} differences")
        wrong += len(comparison.differences)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
