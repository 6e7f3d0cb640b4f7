"""A model split over any grid trains as on one rank, and its checkpoints go on anywhere."""

import re
import unittest

from tandem_runs import ROWS, SEQUENCE, World, run

world = World()


def relative_difference(left, right):
    assert len(left) == len(right), (len(left), len(right))
    return max(abs(a - b) / abs(b) for a, b in zip(left, right))


class AnyGrid(unittest.TestCase):
    def test_trains_and_evaluates_as_one_rank_and_goes_on_on_other_grids(self):
        world.pretrain("one", 6, val=world.val)
        split = world.pretrain("split", 6, ranks=4, val=world.val, shard="tp=2,pp=2", micro_batch=2,
                               checkpoint_every=2, keep=0)
        self.assertIn("grid dp=1,tp=2,pp=2,cp=1,zero=1", split.err)
        self.assertRegex(split.err, r"rank  host +pipeline  data  context  tensor")
        self.assertLess(relative_difference(world.losses("split"), world.losses("one")), 1e-5)
        self.assertEqual(world.tensors("split").keys(), world.tensors("one").keys())
        checkpoint = world.path("split") / "checkpoints" / "step-00000002"
        for name, ranks, shard in (("data", 3, None), ("tensor", 3, "tp=3,zero=0"), ("all", 4, "dp=2,tp=2"),
                                   ("gradients", 3, "dp=3,zero=2"), ("weights", 4, "dp=2,pp=2,zero=3")):
            with self.subTest(shard=shard):
                world.pretrain(name, 6, ranks=ranks, shard=shard, resume=checkpoint, val=world.val)
                self.assertLess(relative_difference(world.losses(name), world.losses("one")[2:]), 1e-5)
        expected = world.evaluate("loss", "--checkpoint", world.path("one"), "--data", world.val)[0]
        for ranks, shard in ((2, "tp=2"), (4, "dp=2,pp=2")):
            with self.subTest(shard=shard):
                measured = world.evaluate("loss", "--checkpoint", world.path("split"), "--data", world.val, "--shard",
                                          shard, ranks=ranks)[0]
                self.assertEqual(measured["tokens"], expected["tokens"])
                self.assertAlmostEqual(measured["loss"] / expected["loss"], 1, delta=1e-5)


class InterleavedStages(unittest.TestCase):
    OPTIONS = {"micro_batch": 1, "val": world.val}

    @classmethod
    def setUpClass(cls):
        cls.OPTIONS["model"] = world.write_model("six.json", num_hidden_layers=6)
        world.pretrain("plain", 6, **cls.OPTIONS)
        cls.split = world.pretrain("interleaved", 6, ranks=2, shard="pp=2,vp=2", checkpoint_every=2, keep=0,
                                   **cls.OPTIONS)

    def resume(self, name, **options):
        checkpoint = world.path("interleaved") / "checkpoints" / "step-00000002"
        world.pretrain(f"interleaved-{name}", 6, resume=checkpoint, **self.OPTIONS, **options)
        return world.losses(f"interleaved-{name}")

    def test_train_and_evaluate_as_one_rank(self):
        self.assertIn("grid dp=1,tp=1,pp=2,cp=1,zero=1,vp=2", self.split.err)
        self.assertRegex(self.split.err, r"rank  host +pipeline  data  context  tensor  virtual stages\n")
        self.assertRegex(self.split.err, r"\n +1 .*  1, 3\n")
        self.assertLess(relative_difference(world.losses("interleaved"), world.losses("plain")), 1e-5)
        ends = [[line["loss"] for line in world.metrics(name) if "evaluation" in line][-1]
                for name in ("interleaved", "plain")]
        self.assertAlmostEqual(ends[0] / ends[1], 1, delta=1e-5)
        expected = world.evaluate("loss", "--checkpoint", world.path("plain"), "--data", world.val)[0]
        for ranks, shard in ((1, "dp=1"), (2, "pp=2,vp=3"), (4, "dp=2,pp=2,vp=2"), (3, "pp=3,vp=2")):
            with self.subTest(shard=shard):
                measured = world.evaluate("loss", "--checkpoint", world.path("interleaved"), "--data", world.val,
                                          "--shard", shard, ranks=ranks)[0]
                self.assertEqual(measured["tokens"], expected["tokens"])
                self.assertAlmostEqual(measured["loss"] / expected["loss"], 1, delta=1e-5)

    def test_resume_bit_for_bit_and_go_on_on_other_grids(self):
        self.assertEqual(self.resume("again", ranks=2, shard="pp=2,vp=2"), world.losses("interleaved")[2:])
        self.assertEqual(world.tensors("interleaved-again"), world.tensors("interleaved"))
        for name, ranks, shard in (("alone", 1, None), ("stages", 2, "pp=2"), ("three", 2, "pp=2,vp=3"),
                                   ("odd", 3, "pp=3,vp=2"), ("both", 4, "tp=2,pp=2,vp=2"),
                                   ("weights", 4, "dp=2,pp=2,vp=2,zero=3")):
            with self.subTest(shard=shard):
                losses = self.resume(name, ranks=ranks, shard=shard)
                self.assertLess(relative_difference(losses, world.losses("plain")[2:]), 1e-5)

    def test_name_what_does_not_fit_and_what_would(self):
        arguments = {**self.OPTIONS, "shard": "pp=2,vp=2"}
        for expected, changes in ((["vp=4 on pp=2 makes 8 virtual stages", "6 layers; vp can be up to 3"],
                                   {"shard": "pp=2,vp=4"}),
                                  (["use pp=2 or more"], {"shard": "tp=2,vp=2"}),
                                  (["vp=0: it must be a whole number"], {"shard": "pp=2,vp=0"}),
                                  (["--micro-batch 4", "into groups of 2 micro batches, which vp=2 on pp=2 takes",
                                    "possible are 1, 2, 3, 6"], {"micro_batch": 4}),
                                  (["--batch-tokens", f"multiples of {2 * SEQUENCE}"],
                                   {"batch_tokens": 3 * SEQUENCE})):
            with self.subTest(**changes):
                ended = world.try_pretrain("refused", 2, 2, **{**arguments, **changes})
                self.assertEqual(ended.code, 2, ended)
                for text in expected:
                    self.assertIn(text, ended.err)
        ended = run(2, "evaluate", "generate", "--checkpoint", world.path("interleaved"), "--shard", "pp=2,vp=2",
                    "--prompt", "Ada")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("leave vp out", ended.err)
        ended = run(2, "evaluate", "loss", "--checkpoint", world.path("interleaved"), "--data", world.val, "--shard",
                    "pp=2,vp=2", "--quantize", "int8")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("one run of layers a rank", ended.err)


class CutModels(unittest.TestCase):
    def test_evaluate_where_rows_of_that_length_are_cut(self):
        # Two tokens cost so little attention that the last of two stages would have one layer instead of two.
        deep = world.write_model("deep.json", num_hidden_layers=4)
        world.pretrain("deep", 1, model=deep)
        arguments = ("loss", "--checkpoint", world.path("deep"), "--data", world.val)
        expected = world.evaluate(*arguments)[0]
        measured = world.evaluate(*arguments, "--shard", "pp=2", ranks=2)[0]
        self.assertAlmostEqual(measured["loss"] / expected["loss"], 1, delta=1e-5)


class PlannedGrid(unittest.TestCase):
    def test_auto_measures_the_ranks_and_trains_on_the_grid_that_it_takes(self):
        world.pretrain("one", 6, val=world.val)
        planned = world.pretrain("planned", 6, ranks=2, val=world.val, shard="auto")
        taken = re.search(r"taken: (dp=\d,tp=\d,pp=\d,cp=\d,zero=[0-3])", planned.err)
        self.assertIn(f"grid {taken[1]}", planned.err)
        self.assertLess(relative_difference(world.losses("planned"), world.losses("one")), 1e-5)

    def test_auto_needs_ranks_to_measure(self):
        ended = run(1, "pretrain", "--model", world.model, "--batch-tokens", ROWS * SEQUENCE, "--sequence-length",
                    SEQUENCE, "--shard", "auto", "--dry-run")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("--cluster", ended.err)


class BadGrids(unittest.TestCase):
    def expect_refused(self, ranks, expected, **options):
        ended = world.try_pretrain("refused", 2, ranks, **options)
        self.assertEqual(ended.code, 2, ended)
        for text in expected:
            self.assertIn(text, ended.err)

    def test_name_what_does_not_fit_and_what_would(self):
        self.expect_refused(2, ["a grid of 4 ranks, but there are 2", "these fit: dp=2;"], shard="dp=2,tp=2")
        self.expect_refused(3, ["pp=3 is more than the model's 2 layers", "these fit: dp=3; tp=3"], shard="pp=3",
                            batch_tokens=6 * SEQUENCE)
        self.expect_refused(2, ["'xp=2'", "dp=2,tp=2,pp=1,cp=1,zero=1"], shard="xp=2")
        self.expect_refused(2, ["Muon", "tp=2"], shard="tp=2", optimizer="muon")
        self.expect_refused(2, ["zero=4: it must be a whole number from 0 to 3"], shard="dp=2,zero=4")

    def test_a_batch_is_shared_out_over_the_data_axis_alone(self):
        self.expect_refused(4, ["multiples of " + str(2 * SEQUENCE)], shard="dp=2,tp=2",
                            batch_tokens=(ROWS + 1) * SEQUENCE)

    def test_a_dry_run_describes_a_rank_of_the_grid(self):
        ended = run(2, "pretrain", "--model", world.model, "--batch-tokens", ROWS * SEQUENCE, "--sequence-length",
                    SEQUENCE, "--shard", "tp=2", "--dry-run")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("grid dp=1,tp=2,pp=1,cp=1,zero=1", ended.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
