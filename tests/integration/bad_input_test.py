"""Whatever is wrong with the input: one clear message, the right exit code on every rank, nothing left half-made."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest

from tandem_runs import ROWS, SEQUENCE, Process, World, run, succeed, wait_until

world = World()
RUNTIME, USAGE, BAD_DATA = 1, 2, 3

# Notes a rank's exit code in a file. mpirun sends SIGTERM to ranks that are left when the first has failed.
NOTE_CODE = ("sh", "-c", 'trap "" TERM; "$@"; code=$?; echo $code >"$CODES/$OMPI_COMM_WORLD_RANK"; exit $code', "--")


class BadInput(unittest.TestCase):
    def expect(self, ended, code, *words):
        self.assertEqual(ended.code, code, ended)
        messages = re.findall(r"^.* error \[.*$", ended.err, re.MULTILINE)
        self.assertEqual(len(messages), 1, ended)
        for word in words:
            self.assertIn(str(word), ended.err)

    def expect_refusal(self, code, *words, ranks=(1, 2), **changes):
        """pretrain says what is wrong, on any rank count, and leaves no run behind."""
        for count in ranks:
            output = world.path("refused")
            self.expect(world.try_pretrain("refused", changes.pop("steps", 3), count, **changes), code, *words)
            self.assertFalse((output / "run.json").exists())
            self.assertFalse(list(output.glob("checkpoints/*")))
            shutil.rmtree(output, ignore_errors=True)


class Options(BadInput):
    def test_an_unknown_flag_is_answered_with_the_nearest_known_one(self):
        ended = run(1, "pretrain", *world.arguments(world.path("no"), 3), "--learning-rat", 1)
        self.expect(ended, USAGE, "unknown flag '--learning-rat'", "--learning-rate")
        self.assertFalse(world.path("no").exists())

    def test_a_flag_given_twice(self):
        self.expect(run(1, "pretrain", *world.arguments(world.path("no"), 3), "--steps", 4), USAGE, "--steps", "twice")

    def test_text_that_is_no_utf8(self):
        self.expect_refusal(USAGE, "--sample-prompt is no UTF-8", sample_prompt="Ada \udcff")
        ended = run(1, "pretrain", *world.arguments(f"{world.path('no')}\udce9", 3))
        self.expect(ended, USAGE, "--output is no UTF-8")

    def test_a_batch_that_does_not_divide_names_possible_ones(self):
        self.expect_refusal(USAGE, "400", "multiples of 32", "384 or 416", ranks=(1,), batch_tokens=400)
        self.expect_refusal(USAGE, "on 2 ranks", "multiples of 64", "64 or 128", ranks=(2,), batch_tokens=96)

    def test_a_micro_batch_that_does_not_divide_names_possible_ones(self):
        self.expect_refusal(USAGE, "--micro-batch 5", "1, 2, 3, 4, 6, 12", ranks=(1,), micro_batch=5)

    def test_numbers_out_of_their_range(self):
        for changes in ({"learning_rate": 0}, {"learning_rate": "nan"}, {"beta2": 1}, {"epsilon": 0},
                        {"last_fraction": 2}, {"clip_norm": -1}, {"weight_decay": -1}, {"max_bad_steps": 0},
                        {"sequence_length": 0}, {"checkpoint_every": -1}, {"keep": -1}, {"loss_scale": 3},
                        {"loss_scale_growth_steps": 0}):
            flag = "--" + next(iter(changes)).replace("_", "-")
            with self.subTest(flag):
                self.expect_refusal(USAGE, flag, ranks=(1,), **changes)

    def test_names_that_do_not_exist_list_those_that_do(self):
        self.expect_refusal(USAGE, "cosine", ranks=(1,), schedule="cosinus")
        self.expect_refusal(USAGE, "muon", ranks=(1,), optimizer="adam")
        self.expect_refusal(USAGE, "fp16", ranks=(1,), precision="fp8")
        self.expect_refusal(USAGE, "it can be fp32 or bf16", ranks=(1,), optimizer_states="fp16")
        self.expect_refusal(USAGE, "it can be device or host", ranks=(1,), optimizer_memory="disk")
        self.expect_refusal(USAGE, "it can be on or off", ranks=(1,), cuda_graphs="yes")
        self.expect_refusal(USAGE, "selective", ranks=(1,), recompute="some")
        self.expect_refusal(USAGE, "30m", ranks=(1,), time_limit="soon")

    def test_muons_momentum_has_no_bfloat16(self):
        self.expect_refusal(USAGE, "Muon's momentum stays in fp32", ranks=(1,), optimizer="muon",
                            optimizer_states="bf16")

    def test_options_that_another_one_leaves_without_effect(self):
        for changes, words in (({"decay_fraction": 0.3}, ("--decay-fraction", "--schedule wsd")),
                               ({"schedule": "constant", "last_fraction": 0.5}, ("--last-fraction", "schedules that fall")),
                               ({"loss_scale": 1024}, ("--loss-scale", "--precision fp16")),
                               ({"memory_limit": 1}, ("--memory-limit", "--micro-batch auto")),
                               ({"sample_tokens": 9}, ("--sample-tokens", "--sample-prompt")),
                               ({"evaluate_tokens": 99}, ("--evaluate-tokens", "--val")),
                               ({"evaluate_every": 2}, ("--evaluate-every", "--val")),
                               ({"telemetry": "off", "gradient_norm_groups": True}, ("--gradient-norm-groups", "--telemetry on"))):
            self.expect_refusal(USAGE, *words, "is for", ranks=(1,), **changes)
        config = world.path("idle.toml")
        config.write_text("decay-fraction = 0.3\n")
        self.expect_refusal(USAGE, "--decay-fraction is for --schedule wsd", ranks=(2,), config=config)

    def test_options_of_a_gpu_on_a_cpu(self):
        for changes, flag in (({"tf32": True}, "--tf32"), ({"attention": "mma"}, "--attention"),
                              ({"exchange": "mpi"}, "--exchange"), ({"tune_products": True}, "--tune-products")):
            self.expect_refusal(USAGE, f"{flag} is for a GPU", device="cpu", **changes)
        self.expect_refusal(USAGE, "--tf32 is for a GPU", device="cpu", tf32=True, dry_run=True)
        ended = run(1, "finetune", "--checkpoint", "none", "--data", "none.jsonl", "--output", world.path("untouched"),
                    "--steps", 1, "--device", "cpu", "--tf32")
        self.expect(ended, USAGE, "--tf32 is for a GPU")
        self.assertFalse(world.path("untouched").exists())

    def test_what_every_device_does_is_for_any(self):
        succeed(1, "pretrain", *world.arguments(world.path("any"), 1, device="cpu", attention="auto", exchange="auto"))

    def test_steps_and_tokens_exclude_each_other(self):
        self.expect_refusal(USAGE, "either --steps or --tokens", ranks=(1,), tokens=1000)
        self.expect_refusal(USAGE, "either --steps or --tokens", ranks=(1,), steps=None)


class Data(BadInput):
    def test_a_missing_file(self):
        self.expect_refusal(USAGE, world.path("absent.h5"), data=f"{world.path('absent.h5')}:0.5")
        self.expect_refusal(USAGE, world.path("absent.h5"), data=world.path("absent.h5"))
        self.expect_refusal(USAGE, world.path("absent.h5"), val=world.path("absent.h5"))
        self.expect_refusal(USAGE, world.path("absent.json"), model=world.path("absent.json"))

    def test_a_file_that_cannot_be_read(self):
        unreadable = world.path("folder.h5")
        unreadable.mkdir(exist_ok=True)
        for count in (1, 2):
            ended = world.try_pretrain("refused", 3, count, data=unreadable)
            self.expect(ended, BAD_DATA, unreadable)
            self.assertFalse(world.path("refused").exists())

    def test_a_file_that_is_no_hdf5(self):
        self.expect_refusal(BAD_DATA, world.tokenizer, data=world.tokenizer)

    def test_an_hdf5_file_of_something_else(self):
        world.pretrain("foreign", 1)
        shard = next(world.path("foreign").glob("checkpoints/*/shard-*.h5"))
        self.expect_refusal(BAD_DATA, shard, "tandem-dataset", data=shard)

    def test_a_truncated_dataset(self):
        content = world.train.read_bytes()
        for part in (0, 100, len(content) // 2, len(content) - 1):
            cut = world.path("cut.h5")
            cut.write_bytes(content[:part])
            with self.subTest(bytes=part):
                self.expect_refusal(BAD_DATA, cut, ranks=(2,) if part > 100 else (1,), data=cut)

    def test_a_validation_set_given_twice_and_two_of_one_name(self):
        ended = run(2, "pretrain", *world.arguments(world.path("refused"), 2, val=world.val), world.val)
        self.expect(ended, USAGE, world.val, "is given twice")
        self.assertFalse(world.path("refused").exists())
        other = world.path("other") / world.val.name
        other.parent.mkdir()
        shutil.copy(world.val, other)
        options = world.arguments(world.path("two-sets"), 2, val=world.val)
        self.assertEqual(run(1, "pretrain", *options, other).code, 0)
        names = {line["evaluation"] for line in world.metrics("two-sets") if "evaluation" in line}
        self.assertEqual(names, {f"{world.folder.name}/val.h5", "other/val.h5"})

    def test_datasets_of_different_tokenizers(self):
        other_train, other_val = other_datasets()
        self.expect_refusal(BAD_DATA, other_val, world.train, "another tokenizer", val=other_val)
        ended = run(1, "pretrain", *world.arguments(world.path("refused"), 3), "--data", other_train)
        self.expect(ended, BAD_DATA, other_train, "tokenizer")

    def test_a_vocabulary_larger_than_the_models(self):
        small = world.write_model("small.json", vocab_size=256)
        self.expect_refusal(BAD_DATA, "vocabulary of 320", small, "256", model=small)

    def test_a_weight_that_is_no_number(self):
        self.expect_refusal(USAGE, "weight", ranks=(1,), data=f"{world.train}:-1")


class Model(BadInput):
    def expect_refused(self, *words, **changes):
        path = world.write_model("bad-model.json", **changes)
        self.expect_refusal(USAGE, path, *words, ranks=(1,), model=path)

    def test_an_unknown_model_type_lists_the_known(self):
        self.expect_refused("'mamba'", "gpt2, llama, mistral, qwen2 and qwen3", model_type="mamba")

    def test_a_misspelt_field(self):
        self.expect_refused("'num_hiden_layers'", "misspelt", num_hiden_layers=3)

    def test_a_field_of_a_wrong_kind(self):
        self.expect_refused("'hidden_size'", "whole number", hidden_size="32")
        self.expect_refused("'num_attention_heads'", num_attention_heads=5, num_key_value_heads=5)

    def test_a_file_that_is_no_json(self):
        path = world.path("text.json")
        path.write_text("layers: 2")
        self.expect_refusal(USAGE, path, "JSON", ranks=(2,), model=path)

    def test_a_sequence_longer_than_the_positions(self):
        self.expect_refusal(USAGE, "--sequence-length 128", "64 positions", sequence_length=128, batch_tokens=1536)
        gpt2 = world.path("gpt2.json")
        gpt2.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 320, "n_embd": 32, "n_layer": 1, "n_head": 2,
                                    "n_positions": 16}))
        self.expect_refusal(USAGE, "16 positions", "n_positions", ranks=(1,), model=gpt2)


class RunFolder(BadInput):
    def test_resume_never_on_an_existing_run(self):
        world.pretrain("existing", 2)
        before = world.tensors("existing"), world.metrics("existing")
        for ranks in (1, 2):
            self.expect(world.try_pretrain("existing", 4, ranks, resume="never"), USAGE, "holds a run already")
        self.assertEqual((world.tensors("existing"), world.metrics("existing")), before)

    def test_another_models_checkpoint(self):
        world.pretrain("model-a", 2)
        before = (world.path("model-a") / "run.json").read_text()
        other = world.write_model("model-b.json", intermediate_size=96)
        for ranks in (1, 2):
            self.expect(world.try_pretrain("model-a", 4, ranks, model=other), USAGE, "another model", other)
        self.assertEqual((world.path("model-a") / "run.json").read_text(), before)

    def test_other_samples_than_the_run_was_trained_on(self):
        world.pretrain("samples", 2)
        for field, changes in (("seed", {"seed": 5}), ("cross_documents", {"cross_documents": True}),
                               ("data", {"data": f"{world.train}:2"}), ("sequence_length", {"sequence_length": 16}),
                               ("data", {"data": world.val}), ("optimizer", {"optimizer": "muon"})):
            with self.subTest(changes):
                self.expect(world.try_pretrain("samples", 4, 1, **changes), USAGE,
                            f"other options than it was made with: {field} was")
        self.assertEqual(len(world.step_lines("samples")), 2)

    def test_a_checkpoint_that_does_not_exist(self):
        self.expect_refusal(USAGE, world.path("nowhere"), "does not exist", resume=world.path("nowhere"))

    def test_a_folder_that_another_live_run_uses(self):
        first = world.start_pretrain("shared", 100000)
        wait_until(lambda: (world.path("shared") / "metrics.jsonl").exists() and world.losses("shared"), "a first step")
        for ranks in (1, 2):
            self.expect(world.try_pretrain("shared", 100000, ranks), USAGE, world.path("shared"), "in use")
        first.send(signal.SIGTERM)
        self.assertEqual(first.wait().code, 75)
        steps = [line["step"] for line in world.step_lines("shared")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_an_output_that_cannot_be_made(self):
        blocked = world.path("file")
        blocked.write_text("in the way")
        for ranks in (1, 2):
            ended = world.try_pretrain("file/run", 2, ranks)
            self.expect(ended, RUNTIME, blocked)


class Checkpoints(BadInput):
    @classmethod
    def setUpClass(cls):
        world.pretrain("intact", 6, ranks=2, checkpoint_every=2, keep=0)

    def damaged(self, name, damage, steps=(6,)):
        copy = world.path(name)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(world.path("intact"), copy)
        for step in steps:
            damage(copy / "checkpoints" / f"step-{step:08d}")
        return copy

    DAMAGES = {
        "a missing shard": lambda step: (step / "shard-00001-of-00002.h5").unlink(),
        "a truncated shard": lambda step: os.truncate(step / "shard-00000-of-00002.h5", 5000),
        "a flipped bit": lambda step: flip_bit(step / "shard-00001-of-00002.h5"),
        "a flipped bit in checkpoint.h5": lambda step: flip_bit(step / "checkpoint.h5"),
        "no checkpoint.h5": lambda step: (step / "checkpoint.h5").unlink(),
    }

    def test_damage_is_told_and_the_step_before_is_used(self):
        for what, damage in self.DAMAGES.items():
            with self.subTest(what):
                name = "damaged"
                self.damaged(name, damage)
                ended = world.pretrain(name, 6, ranks=2)
                self.assertRegex(ended.err, r"warning \[.*step-00000006.*damaged")
                self.assertIn("at step 4", ended.err)
                self.assertEqual(world.tensors(name), world.tensors("intact"))
                self.assertEqual(world.losses(name), world.losses("intact"))

    def test_nothing_intact_is_bad_data_and_leaves_the_run_as_it_was(self):
        for what, damage in self.DAMAGES.items():
            with self.subTest(what):
                copy = self.damaged("lost", damage, (2, 4, 6))
                before = (copy / "metrics.jsonl").read_text()
                for ranks in (1, 2):
                    self.expect(world.try_pretrain("lost", 6, ranks), BAD_DATA, copy, "no intact checkpoint")
                self.assertEqual((copy / "metrics.jsonl").read_text(), before)

    def test_evaluation_of_a_damaged_step_by_name_is_bad_data(self):
        copy = self.damaged("named", self.DAMAGES["a flipped bit"])
        for command in (("loss", "--data", world.val), ("generate", "--prompt", "Ada")):
            ended = run(2, "evaluate", *command, "--checkpoint", copy / "checkpoints" / "step-00000006")
            self.expect(ended, BAD_DATA, "step-00000006")

    def test_evaluation_with_data_that_does_not_fit(self):
        _, other_val = other_datasets()
        for ranks in (1, 2):
            self.expect(run(ranks, "evaluate", "loss", "--checkpoint", world.path("intact"), "--data", other_val),
                        BAD_DATA, other_val, "another tokenizer")
            self.expect(run(ranks, "evaluate", "loss", "--checkpoint", world.path("nowhere"), "--data", world.val),
                        USAGE, "nowhere")
            self.expect(run(ranks, "evaluate", "generate", "--checkpoint", world.path("intact"), "--prompt",
                            "Ada sees a red boat. " * 40), USAGE, "tokens", "64")
        self.expect(run(1, "evaluate", "generate", "--checkpoint", world.path("intact")), USAGE, "--prompt")
        self.expect(run(1, "evaluate", "generate", "--checkpoint", world.path("intact"), "--prompt", "A", "--top-p",
                        "1.5"), USAGE, "--top-p")
        self.expect(run(1, "evaluate", "loss", "--checkpoint", world.path("intact"), "--data", world.val, "--batch",
                        0), USAGE, "--batch")


class Ranks(BadInput):
    def test_every_rank_ends_with_the_code_of_the_error(self):
        cases = {BAD_DATA: {"data": world.tokenizer}, USAGE: {"batch_tokens": 100}, RUNTIME: {"learning_rate": 1e30}}
        for code, changes in cases.items():
            folder = world.path(f"codes-{code}")
            folder.mkdir()
            ended = world.try_pretrain(f"coded-{code}", 100, 3,
                                       process={"prefix": NOTE_CODE, "environment": {"CODES": str(folder)}}, **changes)
            self.assertEqual(ended.code, code, ended)
            codes = {entry.name: entry.read_text().strip() for entry in folder.iterdir()}
            self.assertEqual(codes, {rank: str(code) for rank in "012"}, ended)

    def test_a_rank_that_dies_ends_the_run(self):
        process = world.start_pretrain("widow", 1000000, 2)
        wait_until(lambda: (world.path("widow") / "metrics.jsonl").exists() and world.losses("widow"), "a first step")
        start = time.monotonic()
        os.kill(process.rank_processes()[-1], signal.SIGKILL)
        ended = process.wait(60)
        self.assertNotIn(ended.code, (0, 75), ended)
        self.assertLess(time.monotonic() - start, 60)

    def test_a_loss_that_is_no_number_is_skipped_and_at_last_ends_the_run_naming_the_samples(self):
        for ranks in (1, 2):
            name = f"diverged-{ranks}"
            ended = world.try_pretrain(name, 100, ranks, learning_rate=1e30, max_bad_steps=3)
            self.expect(ended, RUNTIME, "3 steps in a row", "samples", "--learning-rate")
            lines = world.step_lines(name)
            self.assertEqual([line["skipped"] for line in lines[-4:]], [False, True, True, True])
            first = (lines[-1]["step"] - 3) * ROWS
            self.assertIn(f"samples {first} to {first + ROWS - 1}, ", ended.err)
            self.assertEqual(world.checkpoints(name), [])


class FullDisk(BadInput):
    def run_into_limit(self, name, size, **options):
        """Lets no file grow beyond `size` once the run is under way, and returns how it ends."""
        ignore_the_signal = ("bash", "-c", 'trap "" XFSZ; exec "$@"', "--")
        arguments = world.arguments(world.path(name), 100000, schedule="constant", **options)
        process = Process(1, "pretrain", *arguments, prefix=ignore_the_signal)
        metrics = world.path(name) / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and len(world.losses(name)) > 2, "a third step")
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (size, size))
        return process.wait(60)

    def test_a_checkpoint_that_does_not_fit_ends_the_run_and_leaves_the_step_before(self):
        world.pretrain("full", 2, schedule="constant")
        ended = self.run_into_limit("full", 250_000, checkpoint_every=50, keep=0)
        self.expect(ended, RUNTIME, world.path("full"), "step-")
        reached = world.newest_step("full")
        self.assertEqual(reached % 50, 2 if reached == 2 else 0)
        self.assertFalse([name for name in world.checkpoints("full") if not name[5:].isdigit()], "leftovers")
        world.pretrain("full", reached + 2, schedule="constant")
        world.pretrain("never-full", reached + 2, schedule="constant")
        self.assertEqual(world.tensors("full"), world.tensors("never-full"))

    def test_a_small_file_system_full_on_two_ranks(self):
        mount = world.path("tiny")
        mount.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(mount)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
            self.skipTest("needs the right to mount a file system")
        try:
            ended = world.try_pretrain("tiny/run", 6, 2, checkpoint_every=2, keep=0)
            self.expect(ended, RUNTIME, mount, "No space left")
            # Where the metrics were the first that did not fit, the step under way is left as what it is: partial.
            whole = [name for name in world.checkpoints("tiny/run") if not name.endswith(".partial")]
            self.assertEqual(whole, ["step-00000002"])
            self.assertEqual(len(world.tensors("tiny/run")), 42)
        finally:
            subprocess.run(["umount", str(mount)], check=True)

    def test_metrics_that_cannot_be_written_end_the_run(self):
        self.expect(self.run_into_limit("mute", 20_000), RUNTIME, "metrics.jsonl")


def other_datasets():
    if not world.path("other-train.h5").exists():
        tokenizer = world.make_tokenizer("other.json", seed=7, vocabulary=300)
        world.encode(tokenizer, "other-", seed=1)
    return world.path("other-train.h5"), world.path("other-val.h5")


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


if __name__ == "__main__":
    unittest.main(verbosity=2)
