"""A run that is stopped, killed, or moved to other ranks ends as the unbroken run does."""

import json
import os
import random
import signal
import time
import unittest
from pathlib import Path

from tandem_runs import ROWS, SEQUENCE, World, run, succeed, wait_until

world = World()
SOURCES = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("TANDEM_TEST_KILLS", "6"))
SEED = int(os.environ.get("TANDEM_TEST_SEED", "1"))
EXIT_SUBMIT_AGAIN = 75


def relative_difference(left, right):
    assert len(left) == len(right), (len(left), len(right))
    return max(abs(a - b) / abs(b) for a, b in zip(left, right))


class ExactContinuation(unittest.TestCase):
    def expect_exact(self, name, ranks=1, **options):
        world.pretrain(f"{name}-whole", 8, ranks, **options)
        # The same schedule, stopped by its checkpoint's step: the run asks for 8 steps and is cut off after 3.
        world.pretrain(f"{name}-parts", 8, ranks, checkpoint_every=3, keep=0, **options)
        for later in ("step-00000006", "step-00000008"):
            (world.path(f"{name}-parts") / "checkpoints" / later).rename(world.path(f"{name}-{later}"))
        self.assertEqual(world.newest_step(f"{name}-parts"), 3)
        self.assertIn("at step 3", world.pretrain(f"{name}-parts", 8, ranks, **options).err)
        self.assertEqual(world.tensors(f"{name}-parts"), world.tensors(f"{name}-whole"))
        self.assertEqual(world.losses(f"{name}-parts"), world.losses(f"{name}-whole"))
        self.assertEqual([line["step"] for line in world.step_lines(f"{name}-parts")], list(range(1, 9)))

    def test_one_rank_resumes_bit_for_bit(self):
        self.expect_exact("one")

    def test_two_ranks_resume_bit_for_bit(self):
        self.expect_exact("two", ranks=2, micro_batch=2)

    def test_three_ranks_resume_bit_for_bit(self):
        self.expect_exact("three", ranks=3)

    def test_bfloat16_storage_resumes_bit_for_bit(self):
        self.expect_exact("bf16", precision="bf16", recompute="full")

    def test_float16_storage_resumes_bit_for_bit_with_its_loss_scale(self):
        # Begins too high, so that steps are skipped, and grows again on both sides of the checkpoint.
        self.expect_exact("fp16", ranks=2, precision="fp16", loss_scale=2**24, loss_scale_growth_steps=2)
        scales = [line["loss_scale"] for line in world.step_lines("fp16-whole")]
        self.assertEqual([line["loss_scale"] for line in world.step_lines("fp16-parts")], scales)
        self.assertEqual(scales[0], 2**24)
        self.assertGreater(len(set(scales)), 1)

    def test_moments_in_bfloat16_resume_bit_for_bit_and_keep_the_loss(self):
        self.expect_exact("states", ranks=2, optimizer_states="bf16")
        world.pretrain("states-fp32", 8, 2)
        self.assertLess(relative_difference(world.losses("states-whole"), world.losses("states-fp32")), 5e-3)
        ended = run(1, "pretrain", *world.arguments(world.path("states-whole"), 9))
        self.assertEqual(ended.code, 2, ended)
        self.assertIn('optimizer_states was "bf16" and is now "fp32"', ended.err)

    def test_muon_resumes_bit_for_bit_on_two_ranks(self):
        self.expect_exact("muon", ranks=2, optimizer="muon")

    def test_recomputation_changes_no_bit(self):
        for recompute in ("none", "selective", "full"):
            world.pretrain(f"recompute-{recompute}", 4, recompute=recompute)
        self.assertEqual(world.tensors("recompute-none"), world.tensors("recompute-selective"))
        self.assertEqual(world.tensors("recompute-none"), world.tensors("recompute-full"))

    def test_a_finished_run_started_again_has_nothing_to_do(self):
        world.pretrain("finished", 3)
        before = world.tensors("finished"), world.metrics("finished")
        world.pretrain("finished", 3)
        self.assertEqual((world.tensors("finished"), world.metrics("finished")), before)

    def test_a_longer_run_can_start_from_a_named_checkpoint(self):
        world.pretrain("origin", 4, schedule="constant")
        world.pretrain("grown", 6, schedule="constant", resume=world.path("origin"))
        world.pretrain("at-once", 6, schedule="constant")
        self.assertEqual(world.tensors("grown"), world.tensors("at-once"))
        # The same command again goes on from the run's own steps, not from the named ones.
        self.assertIn("at step 6", world.pretrain("grown", 8, schedule="constant", resume=world.path("origin")).err)
        self.assertEqual([line["step"] for line in world.step_lines("grown")], [5, 6, 7, 8])


class Stopping(unittest.TestCase):
    def expect_stop_and_go_on(self, name, stop, code=EXIT_SUBMIT_AGAIN):
        # More steps than any machine takes before it is stopped; the schedule is one that does not depend on them.
        options = {"ranks": 2, "evaluate_every": 100, "val": world.val, "schedule": "constant"}
        process = world.start_pretrain(name, 10**9, **options, **({"time_limit": "1s"} if stop is None else {}))
        if stop is not None:
            wait_until(lambda: (world.path(name) / "metrics.jsonl").exists() and len(world.step_lines(name)) > 3,
                       "three steps")
            stop(process)
        ended = process.wait()
        self.assertEqual(ended.code, code, ended)
        reached = world.newest_step(name)
        self.assertEqual(reached, world.step_lines(name)[-1]["step"])
        self.assertIn("run the same command to go on", ended.err)
        world.pretrain(name, reached + 10, **options)
        world.pretrain(f"{name}-unbroken", reached + 10, **options)
        self.assertEqual(world.tensors(name), world.tensors(f"{name}-unbroken"))
        self.assertEqual(world.losses(name), world.losses(f"{name}-unbroken"))
        evaluations = [[line for line in world.metrics(run_name) if "evaluation" in line]
                       for run_name in (name, f"{name}-unbroken")]
        self.assertEqual(*evaluations)

    def test_sigterm_to_every_rank_saves_and_asks_to_be_submitted_again(self):
        def stop(process):
            for rank in process.rank_processes():
                os.kill(rank, signal.SIGTERM)
        self.expect_stop_and_go_on("sigterm", stop)

    def test_sigusr1_to_one_rank_stops_all(self):
        self.expect_stop_and_go_on("one-rank", lambda process: os.kill(process.rank_processes()[-1], signal.SIGUSR1))

    def test_sigusr1_to_mpirun_reaches_the_ranks(self):
        self.expect_stop_and_go_on("sigusr1", lambda process: process.send(signal.SIGUSR1))

    # mpirun answers SIGTERM by ending the job, with a code of its own; the ranks save in the time that it leaves them.
    def test_sigterm_to_mpirun_still_saves(self):
        self.expect_stop_and_go_on("mpirun", lambda process: process.send(signal.SIGTERM), code=1)

    def test_a_time_limit_saves_and_asks_to_be_submitted_again(self):
        self.expect_stop_and_go_on("time-limit", None)


class Killing(unittest.TestCase):
    def expect_survival(self, name, ranks, kills):
        """Kills at random moments; every restart resumes, and the end is that of the unbroken run."""
        steps, every = 60 + 10 * kills, 3
        options = {"ranks": ranks, "checkpoint_every": every, "keep": 2}  # most kills come while a step is being saved
        world.pretrain(f"{name}-unbroken", steps, **options)
        random_numbers = random.Random(SEED)
        started, lost, saving = 0, [], 0
        for kill in range(kills):
            begin = world.newest_step(name) if started else 0
            process = world.start_pretrain(name, steps, **options)
            started += 1
            # The next steps are a few milliseconds each: wait for the loop, then for a random part of some steps.
            target = min(begin + random_numbers.randint(0, 8), steps - 1)
            wait_until(lambda: process.process.poll() is not None or world.newest_step(name) >= max(target, 1), "steps")
            time.sleep(random_numbers.random() * 0.03)
            if process.process.poll() is not None:
                self.assertEqual(process.wait().code, 0)
                break
            ended = process.kill_all()
            self.assertNotIn(" error ", ended.err)
            wait_until(lambda p=process: not p.rank_processes(), "the killed ranks are gone")
            saving += any(".partial" in checkpoint for checkpoint in world.checkpoints(name))
            metrics = (world.path(name) / "metrics.jsonl").read_text().count('"loss"')
            lost.append(metrics - world.newest_step(name))
        world.pretrain(name, steps, **options)
        self.assertLessEqual(max(lost, default=0), 2 * every, "more is lost than one save under way")
        self.assertEqual(world.tensors(name), world.tensors(f"{name}-unbroken"))
        self.assertEqual(world.losses(name), world.losses(f"{name}-unbroken"))
        self.assertEqual([line["step"] for line in world.step_lines(name)], list(range(1, steps + 1)))
        self.assertFalse([c for c in world.checkpoints(name) if not c[5:].isdigit()], "leftovers")
        print(f"{name}: {len(lost)} kills, {saving} while a step was being saved, at most {max(lost, default=0)} "
              f"steps lost", flush=True)

    def test_one_rank_killed_at_random_moments_ends_as_if_it_had_not_been(self):
        self.expect_survival("killed-1", 1, KILLS - KILLS // 3)

    def test_two_ranks_killed_at_random_moments_end_as_if_they_had_not_been(self):
        self.expect_survival("killed-2", 2, KILLS // 3)


class Moving(unittest.TestCase):
    def test_a_run_moved_over_1_3_2_4_ranks_sees_the_samples_and_losses_of_the_unmoved_one(self):
        world.pretrain("unmoved", 8, schedule="constant", val=world.val)
        for ranks, steps in ((1, 2), (3, 4), (2, 6), (4, 8)):
            world.pretrain("moved", steps, ranks, schedule="constant", val=world.val)
        self.assertLess(relative_difference(world.losses("moved"), world.losses("unmoved")), 1e-4)
        self.assertEqual([line["tokens"] for line in world.step_lines("moved")],
                         [step * ROWS * SEQUENCE for step in range(1, 9)])
        last = [world.metrics(one)[-1] for one in ("moved", "unmoved")]
        self.assertAlmostEqual(last[0]["bits_per_byte"], last[1]["bits_per_byte"], delta=1e-4)

    def test_losses_do_not_depend_on_ranks_micro_batch_and_accumulation(self):
        world.pretrain("factor", 5, micro_batch=12)
        for ranks, micro_batch in ((1, 1), (1, 4), (2, 6), (2, 1), (3, 2), (4, 3)):
            name = f"factor-{ranks}-{micro_batch}"
            world.pretrain(name, 5, ranks, micro_batch=micro_batch)
            self.assertLess(relative_difference(world.losses(name), world.losses("factor")), 2e-5, name)


class RunFolder(unittest.TestCase):
    def test_holds_what_the_design_names(self):
        world.pretrain("folder", 4, ranks=2, checkpoint_every=1, evaluate_every=2, val=world.val, keep=2)
        self.assertEqual(world.checkpoints("folder"), ["step-00000003", "step-00000004"])
        description = json.loads((world.path("folder") / "run.json").read_text())
        self.assertEqual(description["program"], "pretrain")
        self.assertEqual((description["ranks"], len(description["hosts"])), (2, 2))
        self.assertEqual(description["options"]["steps"], "4")
        steps = world.step_lines("folder")
        self.assertEqual([line["step"] for line in steps], [1, 2, 3, 4])
        self.assertLessEqual({"step", "tokens", "loss", "learning_rate", "gradient_norm", "step_seconds",
                              "compute_seconds", "wait_seconds", "communication_seconds", "data_seconds",
                              "tokens_per_second", "model_flops_per_second", "mfu", "peak_memory_bytes", "loss_scale",
                              "skipped"}, set(steps[0]))
        evaluations = [line for line in world.metrics("folder") if "evaluation" in line]
        self.assertEqual([line["step"] for line in evaluations], [2, 4])
        self.assertEqual(set(evaluations[0]), {"step", "evaluation", "loss", "perplexity", "bits_per_byte", "tokens"})
        self.assertEqual(evaluations[0]["evaluation"], "val.h5")

    def test_learning_rate_and_tokens_follow_the_command_line(self):
        world.pretrain("rates", None, tokens=5 * ROWS * SEQUENCE, schedule="linear", warmup_steps=2,
                       learning_rate=1e-3, last_fraction=0)
        rates = [line["learning_rate"] for line in world.step_lines("rates")]
        for rate, expected in zip(rates, (5e-4, 1e-3, 2e-3 / 3, 1e-3 / 3, 0), strict=True):
            self.assertAlmostEqual(rate, expected, delta=1e-9)

    def test_a_configuration_file_holds_the_options_and_the_command_line_wins(self):
        config = world.path("run.toml")
        config.write_text(f'model = "{world.model}"\nsteps = 2\nbatch-tokens = {ROWS * SEQUENCE}\n'
                          f"sequence-length = {SEQUENCE}\nseed = 9\n")
        succeed(1, "pretrain", "--config", config, "--data", world.train, "--output", world.path("config"), "--steps",
                3)
        self.assertEqual(len(world.step_lines("config")), 3)
        self.assertIn('"seed": "9"', (world.path("config") / "run.json").read_text())

    def test_a_dry_run_reads_no_data_and_tells_parameters_memory_and_operations(self):
        arguments = world.arguments(world.path("dry"), None, data=world.path("absent.h5"))
        ended = run(2, "pretrain", *arguments, "--dry-run")
        self.assertEqual(ended.code, 0, ended)
        for word in ("parameters", "gradients", "optimizer states", "activations", "FLOP"):
            self.assertIn(word, ended.out)
        self.assertFalse(world.path("dry").exists())

    def test_the_most_rows_that_fit_are_taken_when_asked_for(self):
        arguments = world.arguments(world.path("dry"), None, data=world.path("absent.h5"))
        ended = run(2, "pretrain", *arguments, "--dry-run", "--micro-batch", "auto")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn(f"1 micro batches of {ROWS // 2} rows", ended.out)
        for micro_batch, message in (("auto", "one row of"), ("many", "--micro-batch is 'many'")):
            ended = run(2, "pretrain", *arguments, "--dry-run", "--micro-batch", micro_batch, "--memory-limit", "1e-6")
            self.assertEqual(ended.code, 2, ended)
            self.assertIn(message, ended.err)

    def test_a_dry_run_plans_for_a_cluster_that_is_described(self):
        cluster = world.path("pair.toml")
        cluster.write_text((SOURCES / "data" / "clusters" / "spark-pair.toml").read_text())
        arguments = world.arguments(world.path("dry"), None, data=world.path("absent.h5"))
        ended = run(1, "pretrain", *arguments, "--dry-run", "--cluster", cluster)
        self.assertEqual(ended.code, 0, ended)
        for word in ("plan for 'pair': 2 nodes", "taken: dp=2,tp=1,pp=1,cp=1", "optimizer states", "not taken:"):
            self.assertIn(word, ended.out)
        cluster.write_text("nodes = 0\n")
        ended = run(2, "pretrain", *arguments, "--dry-run", "--cluster", cluster)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("line 1: 'nodes' must be a number from 1", ended.err)
        ended = run(1, "pretrain", *arguments, "--steps", 1, "--cluster", cluster)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("it goes with --dry-run", ended.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
