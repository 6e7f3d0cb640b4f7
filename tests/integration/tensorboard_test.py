"""The curves of a run as TensorBoard reads them are those of metrics.jsonl, also after a run that was resumed."""

import importlib.util
import struct
import unittest

from tandem_runs import World

world = World()
TAGS = {"training/loss": "loss", "training/learning_rate": "learning_rate", "training/gradient_norm": "gradient_norm",
        "speed/tokens_per_second": "tokens_per_second", "speed/matrix_rate_share": "matrix_rate_share"}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    while data:
        size, of_size = struct.unpack_from("<QI", data)
        assert of_size == masked(data[:8]), "checksum of a length"
        assert struct.unpack_from("<I", data, 12 + size)[0] == masked(data[12:12 + size]), "checksum of a record"
        yield data[12:12 + size]
        data = data[16 + size:]


def fields(message):
    """Number and value of each field of a protocol buffer."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value, at = message[at:at + size], at + size
        yield key >> 3, value


def decoded(run):
    """{tag: [(step, value)]}, in the order of the files' names."""
    curves = {}
    for path in sorted((world.path(run) / "tensorboard").iterdir()):
        for record in records(path.read_bytes()):
            event = dict(fields(record))
            for _, value in fields(event.get(5, b"")):
                scalar = dict(fields(value))
                curves.setdefault(scalar[1].decode(), []).append((event[2], struct.unpack("<f", scalar[2])[0]))
    return curves


def as_float(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


class TensorBoard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        options = {"val": world.val, "evaluate_every": 2, "checkpoint_every": 3, "keep": 0}
        world.pretrain("run", 8, **options)
        (world.path("run") / "checkpoints" / "step-00000008").rename(world.path("later"))
        world.pretrain("run", 8, **options)  # goes on from step 6

    def expect_the_metrics(self, curves):
        steps, evaluations = world.step_lines("run"), [line for line in world.metrics("run") if "evaluation" in line]
        self.assertEqual(len(list((world.path("run") / "tensorboard").iterdir())), 2)
        for tag, name in TAGS.items():
            self.assertEqual(curves[tag], [(line["step"], as_float(line[name])) for line in steps], tag)
        for name in ("loss", "perplexity", "bits_per_byte"):
            self.assertEqual(curves[f"evaluation/val.h5/{name}"],
                             [(line["step"], as_float(line[name])) for line in evaluations], name)

    def test_the_event_files_hold_the_metrics_each_step_once(self):
        self.expect_the_metrics(decoded("run"))

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "there is no Python package tensorboard here")
    def test_tensorboard_reads_the_same(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        accumulator = EventAccumulator(str(world.path("run") / "tensorboard"), size_guidance={"scalars": 0})
        accumulator.Reload()
        self.expect_the_metrics({tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
                                 for tag in accumulator.Tags()["scalars"]})


if __name__ == "__main__":
    unittest.main(verbosity=2)
