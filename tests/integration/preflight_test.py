"""preflight says go or no-go on every rank alike, with the reason, and tries the real run without touching it."""

import json
import unittest

from tandem_runs import ROWS, SEQUENCE, World, run

world = World()
QUICK = ("--quick", "--load-seconds", 0.05, "--threads", 1)


def arguments(output, **changes):
    return world.arguments(world.path(output), 1000, **{**changes, "threads": None})


def preflight(*more, ranks=2):
    ended = run(ranks, "preflight", "--json", *QUICK, *more)
    assert ended.code in (0, 4), ended  # this machine may be too busy to be fit
    return ended, json.loads(ended.out)


class Preflight(unittest.TestCase):
    def test_exit_code_and_verdict_follow_from_the_checks(self):
        ended, report = preflight()
        no_go = [check for check in report["checks"] if check["verdict"] == "no-go"]
        self.assertEqual(report["go"], not no_go)
        self.assertEqual(ended.code, 4 if no_go else 0)
        self.assertEqual([rank["rank"] for rank in report["ranks"]], [0, 1])
        for check in report["checks"]:
            self.assertIn(check["verdict"], ("go", "warning", "no-go", "unknown"))
            self.assertEqual(bool(check["advice"]), bool(check["advice"] and check["verdict"] != "go"))
        for check in no_go:
            self.assertTrue(check["limit"], check)

    def test_processors_are_unknown_devices_and_it_says_so(self):
        _, report = preflight(ranks=1)
        limits = [check for check in report["checks"] if check["subject"] == "limits of these processors"]
        self.assertEqual(len(limits), 1)
        self.assertEqual(limits[0]["verdict"], "unknown")
        self.assertIn("comparison with the other ranks only", limits[0]["limit"])
        self.assertGreater(report["ranks"][0]["readings"]["matrix_rate"], 0)

    def test_the_real_run_is_tried_and_projected_and_leaves_nothing(self):
        config = world.path("run.toml")
        config.write_text(f'model = "{world.model}"\ndata = ["{world.train}"]\noutput = "{world.path("tried")}"\n'
                          f"steps = 1000\nbatch-tokens = {ROWS * SEQUENCE}\nsequence-length = {SEQUENCE}\n"
                          "checkpoint-every = 100\n")
        before = sorted(world.folder.iterdir())
        _, report = preflight("--config", config, ranks=1)
        trial = report["trial"]
        if not report["go"] and trial is None:
            self.skipTest("this machine is too busy: a no-go is not tried")
        self.assertEqual((trial["steps"], trial["steps_of_the_run"], trial["checkpoints"]), (20, 1000, 10))
        self.assertTrue(trial["finite"])
        self.assertGreater(trial["checkpoint_seconds"], 0)
        expected = 1000 * trial["step_seconds"] + 10 * trial["checkpoint_seconds"]
        self.assertAlmostEqual(trial["projected_seconds"] / expected, 1, delta=1e-9)
        self.assertEqual(sorted(world.folder.iterdir()), before)

    def test_a_plan_that_no_memory_holds_is_a_no_go_on_all_ranks_and_is_not_tried(self):
        huge = 1 << 30
        options = arguments("huge", batch_tokens=2 * huge * SEQUENCE, micro_batch=huge)
        ended, report = preflight(*options)
        self.assertEqual(ended.code, 4, ended)
        memory = [check for check in report["checks"] if check["subject"] == "memory of the host"]
        self.assertEqual([check["verdict"] for check in memory], ["no-go"])
        self.assertIn("--micro-batch", memory[0]["advice"])
        self.assertIsNone(report["trial"])
        self.assertFalse(world.path("huge").exists())

    def test_the_table_ends_with_the_verdict(self):
        ended = run(1, "preflight", *QUICK)
        self.assertRegex(ended.out, r"\n(go|no-go)\n$")
        self.assertRegex(ended.out, r"\ngo +HDF5 +all nodes +\d")

    def test_a_run_that_cannot_be_meant_is_refused(self):
        ended = run(2, "preflight", *QUICK, *arguments("refused", batch_tokens=ROWS * SEQUENCE + 1))
        self.assertEqual(ended.code, 2, ended)
        ended = run(1, "preflight", *QUICK, "--trial-stesp", 3)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("did you mean '--trial-steps'", ended.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
