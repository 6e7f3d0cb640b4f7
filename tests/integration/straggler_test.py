"""A rank that is slowed down is named with its host while the run goes on, and the run may end for it with a checkpoint."""

import os
import signal
import threading
import time
import unittest

from tandem_runs import ROWS, SEQUENCE, World, wait_until

world = World()
# Large enough that a step takes longer than a pulse.
MODEL = world.write_model("wide.json", hidden_size=256, intermediate_size=512, num_hidden_layers=4)


class Pulses:
    """Stops a process four fifths of the time."""

    def __init__(self, pid):
        self.pid, self.ended = pid, threading.Event()
        self.thread = threading.Thread(target=self.pulse)
        self.thread.start()

    def pulse(self):
        try:
            while not self.ended.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                time.sleep(0.04)
                os.kill(self.pid, signal.SIGCONT)
                time.sleep(0.01)
        except ProcessLookupError:
            pass

    def end(self):
        self.ended.set()
        self.thread.join()


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        values = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)
    return int(values[b"OMPI_COMM_WORLD_RANK"])


class Straggler(unittest.TestCase):
    def start(self, output, **options):
        process = world.start_pretrain(output, 5000, ranks=2, model=MODEL, batch_tokens=4 * ROWS * SEQUENCE, **options)
        metrics = world.path(output) / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first step")
        slow = next(pid for pid in process.rank_processes() if rank_of(pid) == 1)
        return process, Pulses(slow)

    def test_a_slowed_rank_is_named_and_the_run_ends_with_a_checkpoint_where_that_is_asked(self):
        process, pulses = self.start("slowed", on_straggler="checkpoint-and-exit")
        try:
            ended = process.wait(120)
        finally:
            pulses.end()
        self.assertEqual(ended.code, 75, ended)
        self.assertRegex(ended.err, r"rank 1 on \S+ computes at 0\.\d\d x")
        self.assertIn("the job runs at 0.", ended.err)
        last = world.step_lines("slowed")[-1]
        self.assertIn("rank 1 on", last["straggler"])
        self.assertEqual(len(last["rank_compute_seconds"]), 2)
        self.assertEqual(world.newest_step("slowed"), last["step"])

    def test_another_policy_is_refused(self):
        ended = world.try_pretrain("refused", 1, on_straggler="panic")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("checkpoint-and-exit", ended.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
