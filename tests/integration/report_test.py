"""What a run tells people: its page, with what the model writes, and runs set side by side."""

import json
import os
import shutil
import subprocess
import unittest
from pathlib import Path

from tandem_runs import World, run, succeed

world = World()
SCREENSHOTS = Path(__file__).resolve().parents[1] / "browser" / "screenshots.sh"


def setUpModule():
    world.pretrain("first", 12, ranks=2, val=world.val, evaluate_every=4, checkpoint_every=4, keep=0,
                   gradient_norm_groups=True, sample_prompt="Ada sees", sample_tokens=8)
    world.pretrain("second", 8, learning_rate=1e-3, val=world.val, evaluate_every=4)


def events(output, kind):
    lines = [json.loads(line) for line in (world.path(output) / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


class Report(unittest.TestCase):
    def test_the_model_writes_at_each_evaluation_and_the_page_shows_it(self):
        samples = events("first", "sample")
        self.assertEqual([sample["step"] for sample in samples], [4, 8, 12])
        self.assertTrue(all(sample["prompt"] == "Ada sees" and sample["text"] for sample in samples), samples)
        page = (world.path("first") / "report.html").read_text()
        self.assertIn("<b>Ada sees</b>", page)
        self.assertIn("Norm of the gradient, by part of the model", page)
        self.assertEqual([len(events("first", kind)) for kind in ("start", "resume", "end")], [1, 0, 1])

    def test_the_norms_of_the_parts_are_those_of_the_whole_on_any_ranks(self):
        world.pretrain("alone", 3, gradient_norm_groups=True)
        for step, alone in zip(world.step_lines("first"), world.step_lines("alone")):
            parts = step["gradient_norm_groups"]
            self.assertEqual(list(parts), ["embedding", "layer 0", "layer 1", "head"])
            self.assertAlmostEqual(sum(norm**2 for norm in parts.values()) ** 0.5 / step["gradient_norm"], 1, delta=1e-5)
            for part, norm in parts.items():
                self.assertAlmostEqual(norm / alone["gradient_norm_groups"][part], 1, delta=1e-3)

    def test_samples_do_not_change_the_run(self):
        world.pretrain("silent", 12, ranks=2, val=world.val, evaluate_every=4, checkpoint_every=4, keep=0)
        self.assertEqual(world.losses("silent"), world.losses("first"))

    def test_each_rank_tells_of_its_checkpoints_in_the_step_after(self):
        told = [line["step"] for line in world.step_lines("first") if "rank_checkpoint_seconds" in line]
        self.assertEqual(told, [5, 9])
        for line in world.step_lines("first"):
            self.assertEqual(all(line.get("rank_checkpoint_seconds", [0])), line["checkpoint_seconds"] > 0, line)

    def test_without_telemetry_the_same_is_learned_and_only_evaluations_and_events_are_recorded(self):
        ended = world.pretrain("unwatched", 12, ranks=2, val=world.val, evaluate_every=4, checkpoint_every=4, keep=0,
                               telemetry="off", json=True)
        self.assertEqual(world.step_lines("unwatched"), [])
        self.assertEqual([line for line in world.metrics("unwatched")],
                         [line for line in world.metrics("first") if "evaluation" in line])
        self.assertEqual(len(events("unwatched", "end")), 1)
        summary = json.loads(ended.out)
        self.assertEqual(summary["step"]["loss"], world.losses("first")[-1])
        self.assertEqual(summary["loop"]["steps"], 11)
        self.assertGreater(summary["loop"]["seconds"], 0)
        refused = world.try_pretrain("refused", 1, telemetry="off", on_straggler="checkpoint-and-exit")
        self.assertEqual(refused.code, 2, refused)
        self.assertIn("--telemetry on", refused.err)

    def test_a_prompt_that_leaves_no_room_and_a_split_model_that_cannot_write_are_refused(self):
        for changes, ranks, words in (({"sample_prompt": "Ada sees " * 40}, 1, "possible are 1 to 63"),
                                      ({"sample_prompt": "Ada", "shard": "tp=2"}, 2, "--sample-prompt")):
            ended = world.try_pretrain("refused", 1, ranks, **changes)
            self.assertEqual(ended.code, 2, ended)
            self.assertIn(words, ended.err)


class Compare(unittest.TestCase):
    def test_sets_runs_side_by_side(self):
        page = world.path("compare.html")
        first, second = world.path("first"), world.path("second")
        document = world.evaluate("compare", first, second, "--output", page)
        self.assertEqual([entry["steps"] for entry in document["runs"]], [12, 8])
        self.assertEqual(document["evaluation"], "val.h5")
        self.assertEqual(document["differences"]["--learning-rate"], ["0.003", "0.001"])
        self.assertNotIn("--seed", document["differences"])
        self.assertNotIn("--output", document["differences"])
        self.assertIn("by tokens", page.read_text())
        self.assertIn("--learning-rate", succeed(1, "evaluate", "compare", first, second).out)

    def test_a_folder_that_is_no_run_is_refused(self):
        ended = run(1, "evaluate", "compare", world.path("first"), world.folder)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("metrics.jsonl", ended.err)


class Browser(unittest.TestCase):
    @unittest.skipUnless(shutil.which("chromium"), "there is no chromium here")
    def test_pages_are_drawn_without_a_complaint_of_the_browser(self):
        page = world.path("overlay.html")
        world.evaluate("compare", world.path("first"), world.path("second"), "--output", page)
        pictures = world.path("pictures")
        for drawn in (world.path("first") / "report.html", page):
            ended = subprocess.run([SCREENSHOTS, drawn, pictures], capture_output=True, text=True, check=False,
                                   env={**os.environ, "TMPDIR": "/tmp"})
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual(len(list(pictures.glob("*.png"))), 6)

    @unittest.skipUnless(shutil.which("chromium"), "there is no chromium here")
    def test_a_page_with_an_error_is_noticed(self):
        broken = world.path("broken.html")
        broken.write_text("<!doctype html><title>x</title><script>missing()</script>")
        ended = subprocess.run([SCREENSHOTS, broken, world.path("broken")], capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)
        self.assertIn("missing is not defined", ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
