"""A rank that is slowed down, or whose data is, is named with its host within 20 steps, and the run may end for it with a
checkpoint."""

import os
import shutil
import signal
import subprocess
import threading
import time
import unittest
from pathlib import Path

from tandem_runs import BUILD, ENVIRONMENT, ROWS, SEQUENCE, World, succeed, wait_until

world = World()
# Large enough that a step takes longer than a pulse.
MODEL = world.write_model("wide.json", hidden_size=256, intermediate_size=512, num_hidden_layers=4)


class Pulses:
    """Stops a process half of the time."""

    def __init__(self, pid):
        self.pid, self.ended = pid, threading.Event()
        self.thread = threading.Thread(target=self.pulse)
        self.thread.start()

    def pulse(self):
        try:
            while not self.ended.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                time.sleep(0.025)
                os.kill(self.pid, signal.SIGCONT)
                time.sleep(0.025)
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
        return process, Pulses(slow), len(world.step_lines(output))

    def test_a_slowed_rank_is_named_and_the_run_ends_with_a_checkpoint_where_that_is_asked(self):
        process, pulses, before = self.start("slowed", on_straggler="checkpoint-and-exit")
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
        self.assertLessEqual(last["step"], before + 20)

    @unittest.skipUnless(shutil.which("gcc"), "there is no gcc here, which makes a slow disk")
    def test_a_rank_whose_data_comes_slowly_is_named_within_20_steps(self):
        shim = world.path("slow_reads.so")
        source = Path(__file__).parent / "helpers" / "slow_reads.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", shim, source, "-ldl"], check=True)
        # Too large to be in the memory that HDF5 reads ahead into.
        corpus, dataset = world.write_corpus("large.jsonl", 3, documents=20000), world.path("large.h5")
        succeed(1, "tokenize", "encode", "--tokenizer", world.tokenizer, "--input", corpus, "--output", dataset)
        program = [BUILD / "bin" / "pretrain", *map(str, world.arguments(
            world.path("slow-data"), 200, data=dataset, on_straggler="checkpoint-and-exit"))]
        ended = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "1", *program, ":", "-n", "1", "-x",
                                f"LD_PRELOAD={shim}", "-x", "SLOW_READS_MILLISECONDS=40", *program],
                               env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(ended.returncode, 75, ended.stderr)
        last = world.step_lines("slow-data")[-1]
        self.assertRegex(last["straggler"], r"rank 1 on \S+ waits \d+ % of each step for its data")
        self.assertLessEqual(last["step"], 20)

    def test_a_healthy_run_of_tiny_steps_raises_no_alarm_in_1000_steps(self):
        world.pretrain("healthy", 1000, ranks=2)
        lines = world.step_lines("healthy")
        self.assertEqual(len(lines), 1000)
        self.assertEqual([line["straggler"] for line in lines if "straggler" in line], [])

    def test_another_policy_is_refused(self):
        ended = world.try_pretrain("refused", 1, on_straggler="panic")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("checkpoint-and-exit", ended.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
