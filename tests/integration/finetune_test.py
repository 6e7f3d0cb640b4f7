"""Finetuning: a base learns conversations, with all weights or with adapters; it stops, goes on and answers."""

import json
import os
import shutil
import signal
import subprocess
import unittest

from tandem_runs import BUILD, ENVIRONMENT, Process, World, run, succeed, wait_until

world = World()
USAGE, BAD_DATA, SUBMIT_AGAIN = 2, 3, 75
SEQUENCE, ROWS = 64, 6  # rows divide by 1, 2 and 3 ranks
ANSWERS = {"Who is Ada?": "Ada likes a red boat.", "Who is Ben?": "Ben mends the old house.",
           "What does Eve see?": "Eve sees a small bird.", "What does Finn like?": "Finn likes some bread."}


def write_lines(name, records):
    path = world.path(name)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def conversations(name="chat.jsonl", copies=6):
    return write_lines(name, [{"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
                              for question, answer in ANSWERS.items()] * copies)


def base():
    """A model that has read the corpus."""
    if not world.path("base").exists():
        world.pretrain("base", 60, sequence_length=SEQUENCE, batch_tokens=8 * SEQUENCE, learning_rate=6e-3)
    return world.path("base")


def arguments(output, **changes):
    options = {"checkpoint": base(), "data": conversations(), "output": world.path(output), "steps": 6,
               "batch_tokens": ROWS * SEQUENCE, "learning_rate": 3e-3, "chat_template": "tandem", "threads": 1,
               "seed": 3, **changes}
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None:
            words += [flag, *(value if isinstance(value, list) else [value])]
    return words


def finetune(output, ranks=1, **changes):
    return succeed(ranks, "finetune", *arguments(output, **changes))


def answer(checkpoint, question, *more):
    return world.evaluate("generate", "--checkpoint", checkpoint, "--chat", "--prompt", question, "--temperature", 0,
                          "--max-tokens", 30, *more)[0]


class Learning(unittest.TestCase):
    def expect_answers(self, output, ends=True):
        for question, expected in ANSWERS.items():
            written = answer(world.path(output), question)
            self.assertEqual(written["text"][:len(expected)], expected)
            if ends:
                self.assertEqual((written["text"], written["stop_reason"]), (expected, "stop_token"))

    def test_all_weights_learn_the_answers(self):
        self.assertNotEqual(answer(base(), "Who is Ada?", "--chat-template", "tandem")["text"], ANSWERS["Who is Ada?"])
        finetune("full", steps=80)
        self.expect_answers("full")

    def test_adapters_learn_the_answers_and_leave_the_base_as_it_was(self):
        before = world.tensors(base())
        finetune("lora", method="lora", steps=120, learning_rate=1e-2, lora_rank=8, val=conversations("val.jsonl", 1))
        self.expect_answers("lora", ends=False)  # this base's frozen head can hardly tell the end token from others
        self.assertEqual(world.tensors(base()), before)
        stored = world.tensors("lora")
        self.assertTrue(all(".lora_" in name for name in stored), stored.keys())
        # What evaluate makes of base and adapters is what training made of them.
        trained = [line for line in world.metrics("lora") if "evaluation" in line][-1]
        measured = world.evaluate("loss", "--checkpoint", world.path("lora"), "--data", world.path("lora") / "data/val-0.h5")
        self.assertAlmostEqual(measured[0]["loss"], trained["loss"], delta=1e-4 * trained["loss"])

    def test_decomposed_adapters_are_evaluated_merged_and_written_as_they_were_trained(self):
        held_out = {"method": "lora", "lora_decomposed": True, "val": conversations("val.jsonl", 1)}
        finetune("dora", steps=40, learning_rate=1e-2, lora_rank=8, evaluate_every=20, **held_out)
        stored = [name for name in world.tensors("dora") if name.startswith("model/")]
        self.assertEqual(3 * sum(name.endswith(".lora_m") for name in stored), len(stored))
        evaluations = [line["loss"] for line in world.metrics("dora") if "evaluation" in line]
        trained = evaluations[-1]
        self.assertLess(trained, evaluations[0])
        succeed(2, "checkpoint-convert", "merge", "--checkpoint", world.path("dora"), "--output", world.path("dora-merged"))
        succeed(2, "checkpoint-convert", "export", "--checkpoint", world.path("dora"), "--format", "peft", "--output",
                world.path("dora-peft"))
        self.assertTrue(json.loads(world.path("dora-peft/adapter_config.json").read_text())["use_dora"])
        succeed(1, "checkpoint-convert", "merge", "--checkpoint", base(), "--adapter", world.path("dora-peft"), "--output",
                world.path("dora-by-peft"))
        for checkpoint in ("dora", "dora-merged", "dora-by-peft"):
            measured = world.evaluate("loss", "--checkpoint", world.path(checkpoint), "--data",
                                      world.path("dora") / "data/val-0.h5", "--sequence-length", SEQUENCE)
            self.assertAlmostEqual(measured[0]["loss"], trained, delta=1e-5 * trained)

    def test_a_dataset_made_by_tokenize_gives_the_same_losses(self):
        dataset = world.path("chat.h5")
        succeed(2, "tokenize", "encode", "--chat", "--chat-template", "tandem", "--tokenizer", base(), "--input",
                conversations(), "--output", dataset)
        finetune("from-lines")
        finetune("from-dataset", data=dataset, chat_template=None)
        self.assertEqual(world.losses("from-lines"), world.losses("from-dataset"))

    def test_the_loss_does_not_depend_on_ranks_and_micro_batches(self):
        adapters = {"method": "lora", "lora_dropout": 0.3, "learning_rate": 1e-2}
        muon = {"method": "lora", "optimizer": "muon", "lora_rank": 8, "learning_rate": 1e-2}
        decomposed = {**adapters, "lora_decomposed": True}
        for name, changes in (("full", {}), ("lora", adapters), ("muon", muon), ("dora", decomposed),
                              ("dora-muon", {**muon, "lora_decomposed": True})):
            finetune(f"same-{name}", **changes)
            expected = world.losses(f"same-{name}")
            for ranks, micro_batch in ((1, 1), (2, 3), (3, 1)):
                output = f"same-{name}-{ranks}"
                shutil.rmtree(world.path(output), ignore_errors=True)
                finetune(output, ranks, micro_batch=micro_batch, **changes)
                for one, other in zip(world.losses(output), expected, strict=True):
                    self.assertAlmostEqual(one, other, delta=2e-5 * other)

    def test_long_conversations_are_cut_and_named(self):
        records = [{"prompt": question, "completion": text} for question, text in ANSWERS.items()]
        records.insert(1, {"prompt": "Tell me all. " * 30, "completion": "No."})
        ended = finetune("cut", data=write_lines("long.jsonl", records), steps=1)
        self.assertRegex(ended.err, r"1 examples are longer than a row and were cut, by their number from 0: 1")

    def test_epochs_are_passes_over_the_rows(self):
        ended = finetune("epochs", steps=None, epochs=2)
        rows = int(ended.err.split("examples packed into ")[1].split()[0])
        self.assertEqual(len(world.losses("epochs")), -(-2 * rows // ROWS))


class QuantisedBase(unittest.TestCase):
    def quantised(self, form):
        path = world.path(f"base-{form}")
        if not path.exists():
            succeed(1, "checkpoint-convert", "quantize", "--checkpoint", base(), "--format", form, "--output", path)
        return path

    def test_losses_are_those_of_adapters_beside_the_same_weights_as_numbers(self):
        for form in ("int8", "int4"):
            for name, more in ((form, {}), (f"{form}-dora", {"lora_decomposed": True})):
                changes = {"checkpoint": self.quantised(form), "lora_dropout": 0.2, "learning_rate": 1e-2, **more}
                finetune(f"numbers-{name}", method="lora", **changes)
                finetune(f"codes-{name}", method="qlora", quantize=form, **changes)
                expected = world.losses(f"numbers-{name}")
                self.assertLess(expected[-1], expected[0])
                for one, other in zip(world.losses(f"codes-{name}"), expected, strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-6 * other)

    def test_ranks_agree_and_what_is_read_again_is_what_was_trained(self):
        for name, more in (("qlora", {}), ("qdora", {"lora_decomposed": True})):
            changes = {"method": "qlora", "learning_rate": 1e-2, "val": conversations("val.jsonl", 1), **more}  # int4
            for ranks in (1, 2):
                finetune(f"{name}-{ranks}", ranks, **changes)
            for one, other in zip(world.losses(f"{name}-2"), world.losses(f"{name}-1"), strict=True):
                self.assertAlmostEqual(one, other, delta=2e-5 * other)
            trained = [line for line in world.metrics(f"{name}-1") if "evaluation" in line][-1]["loss"]
            merged = world.path(f"{name}-merged")
            succeed(2, "checkpoint-convert", "merge", "--checkpoint", world.path(f"{name}-1"), "--output", merged)
            for checkpoint in (world.path(f"{name}-1"), merged):
                measured = world.evaluate("loss", "--checkpoint", checkpoint, "--data",
                                          world.path(f"{name}-1") / "data/val-0.h5", "--sequence-length", SEQUENCE)
                self.assertAlmostEqual(measured[0]["loss"], trained, delta=1e-5 * trained)

    def test_the_plan_holds_codes_instead_of_numbers(self):
        size = {}
        for method in ("lora", "qlora"):
            plan = succeed(1, "finetune", *arguments("planned", method=method, dry_run=True)).out
            words = next(line for line in plan.splitlines() if line.startswith("frozen parameters")).split()
            size[method] = float(words[3]) * {"KiB": 1, "MiB": 1024}[words[4]]
        tables = 320 * 32 * 4 / 1024  # the embedding, which is the head too, stays numbers
        self.assertLess(size["qlora"] - tables, (size["lora"] - tables) / 4)

    def test_a_base_in_another_format_is_refused(self):
        ended = run(2, "finetune", *arguments("other-format", method="qlora", checkpoint=self.quantised("int8")))
        self.assertEqual(ended.code, USAGE, ended)
        self.assertIn("--quantize int8", ended.err)


PAIRS = [{"prompt": question, "chosen": chosen, "rejected": rejected}  # both fit a row of 64
         for question, chosen, rejected in (("Ada?", "a boat", "bread"), ("Ben?", "a bird", "the door"), ("Eve?", "yes", "no"))]


def pairs(name="pairs.jsonl", copies=6):
    turns = [{"prompt": [{"role": "user", "content": pair["prompt"]}],
              **{which: [{"role": "assistant", "content": pair[which]}] for which in ("chosen", "rejected")}} for pair in PAIRS]
    return write_lines(name, (PAIRS + turns) * copies)


class Preferences(unittest.TestCase):
    def prefer(self, output, ranks=1, **changes):
        return finetune(output, ranks, **{"objective": "dpo", "data": pairs(), "learning_rate": 1e-3, **changes})

    def test_the_chosen_answers_are_preferred_more_and_more(self):
        for name, changes in (("full", {}), ("lora", {"method": "lora", "learning_rate": 1e-2, "beta": 0.2}),
                              ("qlora", {"method": "qlora", "learning_rate": 1e-2}),
                              ("dora", {"method": "lora", "learning_rate": 1e-2, "lora_decomposed": True})):
            self.prefer(f"dpo-{name}", steps=20, val=pairs("val.jsonl", 1), evaluate_every=20, **changes)
            lines = [line for line in world.metrics(f"dpo-{name}") if "evaluation" not in line]
            # The reference is the model of the beginning: no reward, and log 2.
            self.assertAlmostEqual(lines[0]["loss"], 0.6931471805599453, delta=1e-6)
            self.assertAlmostEqual(lines[0]["reward_margin"], 0, delta=1e-6)
            self.assertLess(lines[-1]["loss"], 0.6)
            self.assertGreater(lines[-1]["reward_margin"], 0.1)
            self.assertAlmostEqual(lines[-1]["reward_margin"], lines[-1]["reward_chosen"] - lines[-1]["reward_rejected"], delta=1e-9)
            evaluation = [line for line in world.metrics(f"dpo-{name}") if "evaluation" in line][-1]
            self.assertEqual((evaluation["reward_accuracy"], evaluation["pairs"]), (1, 2 * len(PAIRS)))
            self.assertNotIn("perplexity", evaluation)

    def test_the_loss_does_not_depend_on_ranks_and_micro_batches(self):
        changes = {"method": "lora", "lora_dropout": 0.3, "label_smoothing": 0.1, "micro_batch": 2}
        self.prefer("pairs-1", **changes)
        expected = world.losses("pairs-1")
        for ranks, micro_batch in ((2, 1), (3, 2)):
            self.prefer(f"pairs-{ranks}", ranks, **{**changes, "micro_batch": micro_batch})
            for one, other in zip(world.losses(f"pairs-{ranks}"), expected, strict=True):
                self.assertAlmostEqual(one, other, delta=2e-5 * other)

    def test_it_goes_on_bit_for_bit(self):
        for name, changes in (("dpo-adapters", {"method": "lora", "lora_dropout": 0.2}), ("dpo-all", {})):
            GoingOn.expect_exact(self, name, ranks=2, objective="dpo", data=pairs(), **changes)

    def test_another_beta_is_another_run(self):
        self.prefer("kept-beta", steps=1)
        ended = run(1, "finetune", *arguments("kept-beta", objective="dpo", data=pairs(), beta=0.3, learning_rate=1e-3))
        self.assertEqual(ended.code, USAGE, ended)
        self.assertIn("objective", ended.err)

    def test_long_answers_are_cut_and_named(self):
        records = [*PAIRS, {**PAIRS[0], "chosen": "Ada likes a red boat. " * 20}]
        ended = self.prefer("cut-pairs", data=write_lines("long-pairs.jsonl", records), steps=1)
        self.assertRegex(ended.err, rf"1 examples are longer than a row and were cut, by their number from 0: {2 * len(PAIRS)}\b")

    def test_pairs_that_are_cut_to_the_same_are_left_out_and_named(self):
        alike = {which: "Ada likes a red boat. " * 20 + end for which, end in (("chosen", "Yes."), ("rejected", "No."))}
        ended = self.prefer("alike-pairs", data=write_lines("alike-pairs.jsonl", [*PAIRS, {**PAIRS[0], **alike}]), steps=1)
        self.assertRegex(ended.err, rf"1 pairs have two answers that are the same in their rows and were left out.*: {len(PAIRS)}\b")
        BadInput.expect_refusal(self, BAD_DATA, "no pair of two answers that differ", objective="dpo",
                                data=write_lines("alike.jsonl", [{**PAIRS[0], **alike}]))

    def test_a_dataset_made_by_tokenize_gives_the_same_losses_at_the_rate_of_preferences(self):
        dataset, encode = world.path("pairs.h5"), ("tokenize", "encode", "--tokenizer", base(), "--chat-template", "tandem")
        succeed(2, *encode, "--pairs", "--input", pairs(), "--output", dataset)
        self.prefer("pairs-from-lines", learning_rate=None, schedule="constant")
        self.prefer("pairs-from-dataset", learning_rate=None, schedule="constant", data=dataset, chat_template=None)
        self.assertEqual(world.losses("pairs-from-lines"), world.losses("pairs-from-dataset"))
        self.assertEqual({line["learning_rate"] for line in world.metrics("pairs-from-lines")}, {1e-6})
        self.assertEqual(run(1, *encode, "--pairs", "--chat", "--input", pairs(), "--output", dataset).code, USAGE)
        self.assertEqual(run(1, *encode, "--pairs", "--input", conversations(), "--output", dataset).code, BAD_DATA)

    def test_grids_that_cannot_learn_them_are_refused_with_what_can(self):
        for grid, word in (("dp=1,tp=2", "use dp=2"), ("dp=1,pp=2", "use dp=2"), ("dp=1,cp=2", "use dp=2"), ("dp=2,zero=3", "use zero=2")):
            BadInput.expect_refusal(self, USAGE, word, ranks=(2,), objective="dpo", data=pairs(), shard=grid)


class GoingOn(unittest.TestCase):
    def expect_exact(self, name, **changes):
        finetune(f"{name}-whole", steps=8, **changes)
        finetune(f"{name}-parts", steps=8, checkpoint_every=3, keep=0, **changes)
        for later in ("step-00000006", "step-00000008"):
            shutil.rmtree(world.path(f"{name}-parts") / "checkpoints" / later)
        self.assertIn("at step 3", finetune(f"{name}-parts", steps=8, **changes).err)
        self.assertEqual(world.tensors(f"{name}-parts"), world.tensors(f"{name}-whole"))
        self.assertEqual(world.losses(f"{name}-parts"), world.losses(f"{name}-whole"))

    def test_all_weights_resume_bit_for_bit(self):
        self.expect_exact("whole")

    def test_adapters_resume_bit_for_bit_on_two_ranks(self):
        self.expect_exact("adapters", ranks=2, method="lora", lora_dropout=0.2, lora_rank_stabilised=True)

    def test_adapters_beside_quantised_weights_resume_bit_for_bit_on_two_ranks(self):
        self.expect_exact("quantised", ranks=2, method="qlora", quantize="int8", lora_dropout=0.2)

    def test_decomposed_adapters_resume_bit_for_bit_on_two_ranks(self):
        self.expect_exact("decomposed", ranks=2, method="lora", lora_dropout=0.2, lora_decomposed=True)
        self.expect_exact("decomposed-quantised", ranks=2, method="qlora", lora_decomposed=True)

    def test_another_base_or_other_adapters_are_refused(self):
        finetune("kept", method="lora", steps=2)
        for changes, word in (({"lora_rank": 4}, "adapters"), ({"method": "qlora"}, "adapters"), ({"lora_decomposed": True}, "adapters"),
                              ({"method": "full"}, "and is now null"), ({"seed": 4}, "seed was 3 and is now 4")):
            ended = run(1, "finetune", *arguments("kept", **{"method": "lora", **changes}))
            self.assertEqual(ended.code, USAGE, ended)
            self.assertIn(word, ended.err)

    def test_a_signal_ends_it_with_a_checkpoint_and_the_code_to_submit_it_again(self):
        process = Process(2, "finetune", *arguments("stopped", method="lora", steps=100000))
        wait_until(lambda: world.path("stopped/metrics.jsonl").exists() and len(world.losses("stopped")) > 2, "steps")
        process.send(signal.SIGUSR1)
        ended = process.wait()
        self.assertEqual(ended.code, SUBMIT_AGAIN, ended)
        self.assertGreater(world.newest_step("stopped"), 2)

    def test_it_stops_early_and_keeps_the_best_step(self):
        # What it is evaluated on contradicts what it learns, so that from some step on it grows worse.
        other = write_lines("other.jsonl", [{"prompt": question, "completion": ANSWERS["Who is Ben?"]} for question in ANSWERS])
        changes = {"val": other, "evaluate_every": 3, "patience": 2, "steps": 300, "keep": 1, "learning_rate": 1e-2}
        ended = finetune("early", **changes)
        self.assertIn("done early", ended.err)
        evaluations = [line for line in world.metrics("early") if "evaluation" in line]
        best = min(evaluations, key=lambda line: line["loss"])
        self.assertEqual(evaluations.index(best), len(evaluations) - 3)
        self.assertEqual(os.readlink(world.path("early/best")), f"checkpoints/step-{best['step']:08}")
        self.assertEqual(set(world.checkpoints("early")),
                         {f"step-{line['step']:08}" for line in (best, evaluations[-1])})
        measured = world.evaluate("loss", "--checkpoint", world.path("early/best"), "--data",
                                  world.path("early/data/val-0.h5"))
        self.assertAlmostEqual(measured[0]["loss"], best["loss"], delta=1e-6)
        steps = len(world.losses("early"))
        finetune("early", **changes)
        self.assertEqual(len(world.losses("early")), steps)

    def test_a_best_step_that_is_evaluated_only_when_the_run_goes_on_is_kept(self):
        changes = {"val": conversations("val.jsonl", 1), "evaluate_every": 1, "keep": 1, "schedule": "constant"}
        process = Process(1, "finetune", *arguments("halted", steps=100000, **{**changes, "learning_rate": 1e-5}))
        wait_until(lambda: world.path("halted/metrics.jsonl").exists() and len(world.losses("halted")) > 2, "steps")
        process.send(signal.SIGUSR1)  # which ends the step under way, and leaves its evaluation for later
        self.assertEqual(process.wait().code, SUBMIT_AGAIN)
        last = world.newest_step("halted")
        finetune("halted", steps=last + 1, **{**changes, "learning_rate": 0.5})  # which spoils it
        evaluations = {line["step"]: line["loss"] for line in world.metrics("halted") if "evaluation" in line}
        self.assertEqual(min(evaluations, key=evaluations.get), last)
        self.assertEqual(os.readlink(world.path("halted/best")), f"checkpoints/step-{last:08}")
        self.assertTrue(world.path("halted/best/checkpoint.h5").exists())
        # So in a folder of its own, which has that step then too.
        ended = finetune("onward", steps=last + 1, resume=world.path("halted/best"), **{**changes, "learning_rate": 0.5})
        self.assertEqual(os.readlink(world.path("onward/best")), f"checkpoints/step-{last:08}")
        self.assertIn(f"the best step was {last},", ended.err)
        self.assertTrue(world.path("onward/best/checkpoint.h5").exists())

    def test_a_loss_that_is_no_number_is_never_the_best(self):
        for steps in (1, 2):  # the second goes on from what the first remembers of it
            finetune("broken", steps=steps, learning_rate=1e30, val=conversations("val.jsonl", 1), precision="fp16", loss_scale=1)
        self.assertFalse(os.path.lexists(world.path("broken/best")))

    def test_a_warm_start_takes_the_states_of_the_base(self):
        finetune("cold", schedule="constant")
        finetune("warm", warm_start=True, schedule="constant")
        cold, warm = world.losses("cold"), world.losses("warm")
        self.assertEqual(cold[0], warm[0])
        self.assertNotEqual(cold[1:], warm[1:])
        for steps in (2, 4, 6):  # the age of the states is remembered, whatever later commands say
            finetune("warm-parts", warm_start=True if steps == 2 else None, steps=steps, schedule="constant")
        self.assertEqual(world.losses("warm-parts"), warm)

    def test_a_warm_start_with_the_states_of_another_optimizer_is_refused(self):
        ended = run(2, "finetune", *arguments("other-states", warm_start=True, optimizer="muon"))
        self.assertEqual(ended.code, USAGE, ended)
        self.assertIn("those of adamw", ended.err)


class LostBase(unittest.TestCase):
    def test_adapters_without_their_base_or_with_another_are_no_model(self):
        shutil.copytree(base(), world.path("moving"))
        finetune("of-moving", method="lora", checkpoint=world.path("moving"), steps=2)
        ask = ("evaluate", "generate", "--checkpoint", world.path("of-moving"), "--prompt", "Ada")
        world.path("moving").rename(world.path("moved"))
        self.assertEqual(run(1, *ask).code, BAD_DATA)
        world.pretrain("moving", 60, sequence_length=SEQUENCE, batch_tokens=8 * SEQUENCE)
        self.assertEqual(run(1, *ask).code, BAD_DATA)


class BadInput(unittest.TestCase):
    def expect_refusal(self, code, *words, ranks=(1, 2), **changes):
        for count in ranks:
            ended = run(count, "finetune", *arguments("refused", **changes))
            self.assertEqual(ended.code, code, ended)
            self.assertEqual(ended.err.count(" error ["), 1, ended)
            for word in words:
                self.assertIn(str(word), ended.err)
            self.assertFalse(world.path("refused/run.json").exists())
            shutil.rmtree(world.path("refused"), ignore_errors=True)

    def test_a_bad_line_is_named_with_its_file_and_its_number(self):
        good = json.dumps({"prompt": "a", "completion": "b"})
        for line, word in (('{"messages": [', "no JSON"),
                           ('{"messages": [{"role": "user", "content": "alone"}]}', "no assistant's turn"),
                           ('{"messages": [{"role": "assistant", "content": "first"}]}', "the user's is due"),
                           ('{"question": "?"}', 'none of "messages"')):
            path = world.path("bad.jsonl")
            path.write_text(f"{good}\n\n{line}\n{good}\n")
            self.expect_refusal(BAD_DATA, "bad.jsonl', line 3", word, data=path)
        ended = finetune("skipped", data=path, skip_bad_records=True, steps=1)
        self.assertIn("1 bad records were skipped", ended.err)

    def test_a_pair_that_is_none_is_named_with_its_file_and_its_number(self):
        good = json.dumps(PAIRS[0])
        for line, word in (('{"prompt": "a", "chosen": "b"}', 'no "rejected"'), ('{"prompt": "a", "rejected": "b"}', 'no "chosen"'),
                           ('{"chosen": "b", "rejected": "c"}', 'no "prompt"'),
                           ('{"prompt": "a", "chosen": "b", "rejected": "b"}', "are the same"),
                           ('{"prompt": "a", "chosen": "b", "rejected": 7}', "no text"),
                           ('{"chosen": [{"role": "user", "content": "a"}], "rejected": []}', "no assistant's turn")):
            path = world.path("bad-pairs.jsonl")
            path.write_text(f"{good}\n\n{line}\n{good}\n")
            self.expect_refusal(BAD_DATA, "bad-pairs.jsonl', line 3", word, ranks=(1,), data=path, objective="dpo")
        ended = finetune("skipped-pairs", data=path, objective="dpo", skip_bad_records=True, steps=1)
        self.assertIn("1 bad records were skipped", ended.err)
        self.expect_refusal(USAGE, "preference pairs", data=world.path("skipped-pairs/data/train-0.h5"),
                            chat_template=None)

    def test_pairs_are_not_conversations(self):
        self.expect_refusal(BAD_DATA, "line 1", 'no "completion"', data=pairs())
        self.expect_refusal(BAD_DATA, "line 1", 'no "chosen"', data=conversations(), objective="dpo")

    def test_empty_data(self):
        path = world.path("empty.jsonl")
        path.write_text("\n")
        self.expect_refusal(BAD_DATA, "no document", data=path)

    def test_a_run_in_use_or_that_must_be_new_keeps_its_data(self):
        process = Process(1, "finetune", *arguments("used", steps=100000))
        encoded = world.path("used") / "data" / "train-0.h5"
        wait_until(lambda: (world.path("used") / "metrics.jsonl").exists(), "the run")
        before = encoded.stat().st_ino
        for ranks in (1, 2):
            ended = run(ranks, "finetune", *arguments("used", data=conversations("others.jsonl", 2)))
            self.assertEqual(ended.code, USAGE, ended)
            self.assertIn("in use", ended.err)
        process.send(signal.SIGTERM)
        self.assertEqual(process.wait().code, SUBMIT_AGAIN)
        ended = run(2, "finetune", *arguments("used", data=conversations("others.jsonl", 2), resume="never"))
        self.assertEqual(ended.code, USAGE, ended)
        self.assertIn("holds a run already", ended.err)
        self.assertEqual(encoded.stat().st_ino, before)

    def test_a_template_that_is_missing_unknown_or_does_not_fit(self):
        self.expect_refusal(BAD_DATA, "has no chat template", "--chat-template", chat_template=None)
        self.expect_refusal(USAGE, "no chat template 'vicuna'", "chatml", chat_template="vicuna")
        self.expect_refusal(BAD_DATA, "<|im_start|>", chat_template="chatml")

    def test_another_tokenizer(self):
        train, _ = world.encode(world.make_tokenizer("other.json", seed=2, vocabulary=300), "other-", seed=2)
        self.expect_refusal(BAD_DATA, "another tokenizer", data=train, chat_template=None)

    def test_options_that_make_no_sense(self):
        for changes, word in (({"method": "prefix"}, "full, lora or qlora"), ({"checkpoint": world.path("nowhere")}, "does not exist"),
                              ({"method": "lora", "lora_rank": 0}, "--lora-rank"),
                              ({"method": "lora", "quantize": "int8"}, "--quantize is for"),
                              ({"method": "qlora", "quantize": "int3"}, "int8 and int4"),
                              ({"method": "lora", "lora_dropout": 1}, "--lora-dropout"),
                              ({"method": "lora", "lora_targets": "mlp.side"}, "mlp.gate_up"),
                              ({"method": "lora", "warm_start": True}, "--warm-start"),
                              ({"objective": "ppo"}, "answers or dpo"), ({"objective": "dpo", "beta": 0}, "--beta"),
                              ({"objective": "dpo", "label_smoothing": 0.5}, "--label-smoothing"),
                              ({"beta": 0.2}, "--beta is for --objective dpo"),
                              ({"method": "lora", "label_smoothing": 0.1}, "--label-smoothing is for --objective dpo"),
                              ({"objective": "dpo", "val": pairs(), "evaluate_tokens": 9}, "--evaluate-tokens is for"),
                              ({"lora_rank": 4}, "--lora-rank is for --method lora"),
                              ({"lora_alpha": 4}, "--lora-alpha is for --method lora"),
                              ({"lora_dropout": 0.1}, "--lora-dropout is for --method lora"),
                              ({"lora_targets": "mlp"}, "--lora-targets is for --method lora"),
                              ({"lora_rank_stabilised": True}, "--lora-rank-stabilised is for --method lora"),
                              ({"lora_decomposed": True}, "--lora-decomposed is for --method lora"),
                              ({"data": world.train}, "--chat-template is for conversation files"),
                              ({"epochs": 2}, "one of --epochs"), ({"patience": 1}, "validation set")):
            with self.subTest(word):
                self.expect_refusal(USAGE, word, ranks=(1,), **changes)

    def test_adapters_are_no_base(self):
        finetune("adapters-alone", method="lora", steps=1)
        self.expect_refusal(BAD_DATA, "adapters alone", checkpoint=world.path("adapters-alone"), chat_template=None)


class Chat(unittest.TestCase):
    def chat(self, text, *more, code=0, ranks=1):
        if not world.path("chatty").exists():
            finetune("chatty", steps=80)
        start = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"] if ranks > 1 else []
        ended = subprocess.run([*start, BUILD / "bin" / "evaluate", "chat", "--checkpoint", world.path("chatty"),
                                "--temperature", "0", *more], input=text, capture_output=True, text=True,
                               env=ENVIRONMENT, timeout=60, check=False)
        self.assertEqual(ended.returncode, code, ended.stderr)
        return ended

    def test_answers_each_line_of_its_input(self):
        ended = self.chat("Who is Ada?\n\n/new\nWho is Ben?\n")
        self.assertEqual(ended.stdout, ANSWERS["Who is Ada?"] + "\n" + ANSWERS["Who is Ben?"] + "\n")

    def test_remembers_what_was_said_until_told_to_begin_anew(self):
        turns = json.loads(self.chat("Who is Ada?\nWho is Ada?\n/new\nWho is Ada?\n/quit\nWho is Ben?\n", "--json").stdout)
        self.assertEqual([turn["user"] for turn in turns], ["Who is Ada?"] * 3)
        self.assertEqual(turns[0], turns[2])
        self.assertEqual(turns[0]["stop_reason"], "stop_token")

    def test_forgets_the_oldest_turns_when_there_is_no_room(self):
        ended = self.chat("Who is Ada?\n" * 3, "--max-tokens", "12")
        self.assertIn("the oldest 2 turns", ended.stderr)
        ended = self.chat("Who is Ada? " * 40 + "\n", code=USAGE)
        self.assertIn("the question has", ended.stderr)

    def test_is_held_by_the_ranks_that_have_a_part_of_the_model_each(self):
        questions = "Who is Ada?\nWho is Ben?\n"
        alone = self.chat(questions).stdout
        for grid in ("tp=2", "pp=2"):
            with self.subTest(grid=grid):
                self.assertEqual(self.chat(questions, "--shard", grid, ranks=2).stdout, alone)

    def test_is_for_one_copy_of_the_model(self):
        ended = run(2, "evaluate", "chat", "--checkpoint", base(), "--chat-template", "tandem")
        self.assertEqual(ended.code, USAGE, ended)
        self.assertIn("--shard tp=N", ended.err)


if __name__ == "__main__":
    unittest.main()
