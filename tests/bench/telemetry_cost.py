"""Does telemetry cost at most 0.5 % of a step, and does a healthy run raise no alarm?

    TANDEM_BUILD_DIR=build/cpu python3 tests/bench/telemetry_cost.py [--rounds N] [--steps N] [--ranks N,N] [--width N]
                                                                     [--shortest MILLISECONDS]

By turns: runs with and without telemetry (pretrain --telemetry off), one after the other, each timed from the end of its
first step to that of its last; of each pair the difference a step, and of these the median with the bounds that it lies
between at 95 % (of the binomial distribution). Rounds go on until both bounds are on one side of what is allowed: 0.5 % of the
step that was measured, or of --shortest where that is longer (20 ms: no model worth training has a shorter one). So steps of
a tiny model show microseconds; --width N takes a model so wide that its own steps are long.

Exit code 0: at most that, and no alarm; 1: more, or an alarm; 2: not decided in --rounds pairs.

Told besides: the time between the end of a step and the beginning of the next one, in which everything is recorded (exchange of
the ranks' reports, metrics.jsonl, TensorBoard, the watch for stragglers and spikes); what the sampler takes is not in it.
"""

import argparse
import json
import math
import shutil
import statistics
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from tensorboard_test import fields, records, world  # noqa: E402


def seconds_a_step(run, steps, ranks, telemetry, model):
    shutil.rmtree(world.path(run), ignore_errors=True)
    ended = world.pretrain(run, steps, ranks, model=model, telemetry=telemetry, json=True)
    loop = json.loads(ended.out)["loop"]
    return loop["seconds"] / loop["steps"]


def ends_of_steps(run):
    """When each step had been recorded, in seconds."""
    for path in sorted((world.path(run) / "tensorboard").iterdir()):
        for record in records(path.read_bytes()):
            event = dict(fields(record))
            if 5 in event:
                yield struct.unpack("<d", event[1])[0]


def between_steps(run):
    ends, lines = list(ends_of_steps(run)), world.step_lines(run)[1:]
    return [after - before - line["step_seconds"] for before, after, line in zip(ends, ends[1:], lines)]


def bounds_of_median(values):
    """Between which the median of what the values are drawn from lies, at 95 % at least; infinite for too few of them."""
    values, below = sorted(values), 0
    while below < len(values) // 2 and sum(math.comb(len(values), k) for k in range(below + 1)) <= 0.025 * 2 ** len(values):
        below += 1
    return (values[below - 1], values[-below]) if below > 0 else (-math.inf, math.inf)


class Pairs:
    """Runs with and without telemetry, by turns."""

    def __init__(self, asked, ranks, model):
        self.asked, self.ranks, self.model = asked, ranks, model
        self.on, self.off, self.between, self.alarms = [], [], [], 0

    def add(self):
        turns = (("off", self.off), ("on", self.on))
        for telemetry, times in turns if len(self.on) % 2 == 0 else reversed(turns):
            times.append(seconds_a_step(telemetry, self.asked.steps, self.ranks, telemetry, self.model))
        self.between += between_steps("on")
        self.alarms += sum("straggler" in line for line in world.step_lines("on"))

    def differences(self):
        return [on - off for on, off in zip(self.on, self.off)]

    def allowed(self):
        return 0.005 * max(statistics.median(self.off), 1e-3 * self.asked.shortest)

    def verdict(self):
        low, high = bounds_of_median(self.differences())
        if high <= self.allowed():
            return "alarm" if self.alarms else "holds"
        return "fails" if low > self.allowed() else "undecided"

    def text(self):
        low, high = bounds_of_median(self.differences())
        middle, step = statistics.median(self.differences()), statistics.median(self.off)
        return (f"{self.ranks} ranks, {len(self.on)} pairs of {self.asked.steps} steps of {1e3 * step:.3f} ms: telemetry costs "
                f"{1e6 * middle:.0f} us a step (between {1e6 * low:.0f} and {1e6 * high:.0f}), allowed are "
                f"{1e6 * self.allowed():.0f}: {self.verdict()}; between steps {1e6 * statistics.median(self.between):.0f} us; "
                f"{self.alarms} alarms in {len(self.on) * self.asked.steps} steps")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--shortest", type=float, default=20)
    asked = parser.parse_args()
    model = world.write_model("measured.json", hidden_size=asked.width, intermediate_size=2 * asked.width)
    verdicts = []
    for ranks in asked.ranks:
        pairs = Pairs(asked, ranks, model)
        while len(pairs.on) < asked.rounds and (not pairs.on or pairs.verdict() == "undecided"):
            pairs.add()
        print(pairs.text(), flush=True)
        verdicts.append(pairs.verdict())
    return 1 if {"fails", "alarm"} & set(verdicts) else 2 if "undecided" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
