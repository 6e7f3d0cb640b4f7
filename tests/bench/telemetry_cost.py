"""What telemetry costs: the time between the end of a step and the beginning of the next one, in which everything is recorded
(exchange of the ranks' reports, metrics.jsonl, TensorBoard, the watch for stragglers and spikes).

    TANDEM_BUILD_DIR=build/cpu python3 tests/bench/telemetry_cost.py [STEPS]

Steps of a tiny model, so that the quiet of a machine matters little; the median is what counts.
"""

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from tensorboard_test import fields, records, world  # noqa: E402


def ends_of_steps(run):
    """When each step had been recorded, in seconds."""
    for path in sorted((world.path(run) / "tensorboard").iterdir()):
        for record in records(path.read_bytes()):
            event = dict(fields(record))
            if 5 in event:
                yield struct.unpack("<d", event[1])[0]


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
    for ranks in (1, 2):
        world.pretrain(f"cost-{ranks}", steps, ranks)
        ends = list(ends_of_steps(f"cost-{ranks}"))
        lines = world.step_lines(f"cost-{ranks}")[1:]
        between = sorted(after - before - line["step_seconds"] for before, after, line in zip(ends, ends[1:], lines))
        median = between[len(between) // 2]
        print(f"{ranks} ranks: {1e6 * median:.0f} us between steps (90 of 100: {1e6 * between[len(between) * 9 // 10]:.0f}); "
              f"0.5 % of a step of {1e3 * median / 0.005:.0f} ms")


if __name__ == "__main__":
    main()
