"""What telemetry costs a step, and whether a healthy run raises an alarm.

    TANDEM_BUILD_DIR=build/cpu python3 tests/bench/telemetry_cost.py [--rounds N] [--steps N] [--ranks N,N] [--width N]

By turns: runs with and without telemetry (pretrain --telemetry off), one after the other, each timed from the end of its
first step to that of its last; of each pair the difference a step, and of these the median with its quartiles; and the
difference of the quickest run of each kind, which says more where others use the machine too. Steps of a tiny model show
microseconds; --width N takes a model so wide, of whose steps the same is a part.

Directly: the time between the end of a step and the beginning of the next one, in which everything is recorded (exchange of
the ranks' reports, metrics.jsonl, TensorBoard, the watch for stragglers and spikes); what the sampler takes is not in it.
"""

import argparse
import json
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--width", type=int, default=32)
    asked = parser.parse_args()
    model = world.write_model("measured.json", hidden_size=asked.width, intermediate_size=2 * asked.width)
    for ranks in asked.ranks:
        runs, between, alarms = {"on": [], "off": []}, [], 0
        for turn in range(asked.rounds):
            order = ("off", "on") if turn % 2 == 0 else ("on", "off")
            for telemetry in order:
                runs[telemetry].append(seconds_a_step(telemetry, asked.steps, ranks, telemetry, model))
            between += between_steps("on")
            alarms += sum("straggler" in line for line in world.step_lines("on"))
        low, middle, high = statistics.quantiles([on - off for on, off in zip(runs["on"], runs["off"])], n=4)
        step, quickest = statistics.median(runs["off"]), min(runs["on"]) - min(runs["off"])
        print(f"{ranks} ranks, {asked.rounds} pairs of {asked.steps} steps of {1e3 * step:.3f} ms: telemetry costs "
              f"{1e6 * middle:.0f} us a step (quartiles {1e6 * low:.0f} and {1e6 * high:.0f}), {100 * middle / step:.2f} %; "
              f"the quickest runs ({1e3 * min(runs['off']):.3f} ms) differ by {1e6 * quickest:.0f} us, "
              f"{100 * quickest / min(runs['off']):.2f} %; between steps {1e6 * statistics.median(between):.0f} us, "
              f"0.5 % of a step of {1e3 * statistics.median(between) / 0.005:.0f} ms; "
              f"{alarms} alarms in {asked.rounds * asked.steps} steps", flush=True)


if __name__ == "__main__":
    main()
