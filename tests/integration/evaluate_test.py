"""evaluate tells the same of a checkpoint at any rank count and batch, and what pretrain told of it."""

import itertools
import json
import math
import unittest

from tandem_runs import SEQUENCE, World, run, succeed

world = World()
PROMPTS = ["Ada sees", "Ben likes the", "Cleo", "Dan paints a red", "Eve mends"]


def checkpoint(name="run", **options):
    if not world.path(name).exists():
        world.pretrain(name, 150, ranks=2, val=world.val, **options)
    return world.path(name)


class Loss(unittest.TestCase):
    def measure(self, ranks=1, *arguments):
        results = world.evaluate("loss", "--checkpoint", checkpoint(), "--data", world.val, "--sequence-length",
                                 SEQUENCE, *arguments, ranks=ranks)
        self.assertEqual(len(results), 1)
        return results[0]

    def test_equals_what_pretrain_told_at_the_end(self):
        measured, told = self.measure(), None
        for line in world.metrics("run"):
            told = line if "evaluation" in line else told
        self.assertEqual(set(measured), set(told))
        for name in ("loss", "perplexity", "bits_per_byte"):
            self.assertAlmostEqual(measured[name] / told[name], 1, delta=1e-6)
        for name in ("step", "evaluation", "tokens"):
            self.assertEqual(measured[name], told[name])
        self.assertLess(measured["bits_per_byte"], 1)  # it has learned: chance is above 3

    def test_is_the_same_at_any_rank_count_and_batch(self):
        expected = self.measure()
        for ranks in (1, 2, 3):
            for batch in (1, 4, 7):
                with self.subTest(ranks=ranks, batch=batch):
                    measured = self.measure(ranks, "--batch", batch)
                    self.assertEqual(measured["tokens"], expected["tokens"])
                    self.assertAlmostEqual(measured["loss"] / expected["loss"], 1, delta=1e-6)
                    self.assertAlmostEqual(measured["bits_per_byte"] / expected["bits_per_byte"], 1, delta=1e-6)

    def test_perplexity_and_bits_follow_from_the_loss(self):
        measured = self.measure()
        self.assertAlmostEqual(measured["perplexity"], math.exp(measured["loss"]), delta=1e-9)

    def test_of_several_datasets_keeps_their_order(self):
        results = world.evaluate("loss", "--checkpoint", checkpoint(), "--data", world.train, world.val, "--max-tokens",
                                 320, "--sequence-length", SEQUENCE, ranks=2)
        self.assertEqual([result["evaluation"] for result in results], ["train.h5", "val.h5"])
        self.assertLessEqual(results[0]["tokens"], 320)

    def test_bfloat16_storage_is_close(self):
        low = self.measure(1, "--precision", "bf16")
        self.assertAlmostEqual(low["loss"] / self.measure()["loss"], 1, delta=2e-2)

    def test_quantised_weights_are_close(self):
        exact = self.measure()["loss"]
        for form, delta in (("int8", 5e-3), ("int4", 5e-2)):
            quantised = self.measure(2, "--quantize", form)["loss"]
            self.assertNotEqual(quantised, exact)
            self.assertAlmostEqual(quantised / exact, 1, delta=delta)

    def test_a_format_that_is_none_is_refused(self):
        ended = run(1, "evaluate", "loss", "--checkpoint", checkpoint(), "--data", world.val, "--quantize", "int3")
        self.assertEqual(ended.code, 2)
        self.assertIn("int3", ended.err)

    def test_a_step_of_a_run_can_be_named(self):
        step = checkpoint() / "checkpoints" / "step-00000150"
        results = world.evaluate("loss", "--checkpoint", step, "--data", world.val, "--sequence-length", SEQUENCE)
        self.assertEqual(results[0]["loss"], self.measure()["loss"])

    def test_reads_as_a_line_for_people(self):
        ended = succeed(2, "evaluate", "loss", "--checkpoint", checkpoint(), "--data", world.val)
        self.assertRegex(ended.out, r"^val\.h5 at step 150: loss \d\.\d+  perplexity .*  bits per byte .*"
                                    r"  tokens \d+\n$")


class Generate(unittest.TestCase):
    def write(self, *arguments, ranks=1, prompts=PROMPTS):
        return world.evaluate("generate", "--checkpoint", checkpoint(), "--prompt", *prompts, "--max-tokens", 20,
                              *arguments, ranks=ranks)

    @staticmethod
    def texts(answers):
        return [(answer["prompt"], answer["text"], answer["token_ids"], answer["stop_reason"]) for answer in answers]

    def test_tells_what_the_design_names(self):
        answers = self.write("--temperature", 0)
        self.assertEqual([answer["prompt"] for answer in answers], PROMPTS)
        for answer in answers:
            self.assertEqual(set(answer), {"prompt", "text", "token_ids", "prompt_tokens", "generated_tokens",
                                           "stop_reason", "prefill_seconds", "decode_seconds"})
            self.assertEqual(answer["generated_tokens"], len(answer["token_ids"]))
            self.assertLessEqual(answer["generated_tokens"], 20)
            self.assertGreater(answer["prefill_seconds"], 0)

    def test_writes_as_the_corpus_does(self):
        text = self.write("--temperature", 0, prompts=["Ada sees"])[0]["text"]
        self.assertRegex(text, r"^ (a red boat|the old house|a small bird|the green door|some bread|a long rope)\.")

    def test_greedy_text_is_the_same_at_any_rank_count_and_batch(self):
        expected = self.texts(self.write("--temperature", 0, "--batch", 1))
        for ranks in (1, 2, 3):
            for batch in (1, 4):
                with self.subTest(ranks=ranks, batch=batch):
                    written = self.write("--temperature", 0, "--batch", batch, ranks=ranks)
                    self.assertEqual(self.texts(written), expected)

    def test_a_seed_gives_the_same_text_at_any_rank_count_and_another_seed_another(self):
        first = self.texts(self.write("--seed", 3, "--temperature", 1.5))
        self.assertEqual(self.texts(self.write("--seed", 3, "--temperature", 1.5, "--batch", 2, ranks=2)), first)
        self.assertNotEqual(self.texts(self.write("--seed", 4, "--temperature", 1.5)), first)

    def test_equal_prompts_get_different_answers(self):
        answers = self.write("--temperature", 1.5, prompts=["Ada", "Ada"])
        self.assertNotEqual(answers[0]["text"], answers[1]["text"])

    def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(self):
        answer = self.write("--temperature", 0, "--stop", ".", "zzz", prompts=["Ada sees"])[0]
        self.assertEqual(answer["stop_reason"], "stop_text")
        self.assertTrue(answer["text"])
        self.assertNotIn(".", answer["text"])

    def test_the_end_of_text_token_ends_an_answer_unless_ignored(self):
        long = ("--temperature", 1, "--seed", 1, "--max-tokens", 60)
        prompts = PROMPTS * 4
        answers = world.evaluate("generate", "--checkpoint", checkpoint(), "--prompt", *prompts, *long)
        self.assertIn("stop_token", {answer["stop_reason"] for answer in answers})
        going_on = world.evaluate("generate", "--checkpoint", checkpoint(), "--prompt", *prompts, *long, "--ignore-end")
        self.assertEqual({answer["stop_reason"] for answer in going_on}, {"cache_full"})  # 64 positions

    def test_prompts_come_from_a_file_too(self):
        file = world.path("prompts.txt")
        file.write_text("\n".join(PROMPTS) + "\n\n")
        written = world.evaluate("generate", "--checkpoint", checkpoint(), "--prompt-file", file, "--max-tokens", 20,
                                 "--temperature", 0)
        self.assertEqual(self.texts(written), self.texts(self.write("--temperature", 0)))

    def test_a_single_prompt_is_streamed_as_text(self):
        ended = succeed(1, "evaluate", "generate", "--checkpoint", checkpoint(), "--prompt", "Ada sees", "--max-tokens",
                        20, "--temperature", 0)
        expected = self.write("--temperature", 0, prompts=["Ada sees"])[0]
        self.assertEqual(ended.out, f"Ada sees{expected['text']}\n")
        self.assertIn("tokens/s", ended.err)


class Speed(unittest.TestCase):
    CASES = ("--prompt-tokens", "3,20", "--generated-tokens", "1,6", "--batch", "1,2", "--repetitions", 2)

    def measure(self, *arguments, ranks=1):
        return world.evaluate("speed", "--checkpoint", checkpoint(), *arguments, ranks=ranks)

    def test_measures_every_case_of_every_form(self):
        told = self.measure(*self.CASES, "--precision", "fp32,bf16", "--quantize", "none,int4", ranks=2)
        self.assertEqual((told["ranks"], told["threads"], told["repetitions"]), (2, 1, 2))
        keys = ("precision", "quantize", "batch", "prompt_tokens", "generated_tokens")
        self.assertEqual([tuple(result[key] for key in keys) for result in told["results"]],
                         list(itertools.product(("fp32", "bf16"), ("none", "int4"), (1, 2), (3, 20), (1, 6))))

    def test_figures_agree_with_each_other(self):
        told = self.measure(*self.CASES, "--quantize", "none,int8")
        for result in told["results"]:
            case = {key: result[key] for key in ("quantize", "batch", "prompt_tokens", "generated_tokens")}
            with self.subTest(**case):
                self.assertGreater(result["first_token_seconds"], 0)
                self.assertGreater(result["prompt_tokens_per_second"], 0)
                if case["generated_tokens"] == 1:
                    self.assertIsNone(result["decode_tokens_per_second"])
                    self.assertIsNone(result["bandwidth_share"])
                else:
                    self.assertAlmostEqual(
                        result["decode_bytes_per_second"] / told["read_bandwidth_bytes_per_second"],
                        result["bandwidth_share"])
                    # A step reads at least the weights: the table is tied to the head, so all but padding.
                    steps = result["decode_tokens_per_second"] / case["batch"]
                    self.assertGreater(result["decode_bytes_per_second"] / steps, 0.9 * result["weight_bytes"])
                self.assertGreater(result["peak_memory_bytes"], result["weight_bytes"] + result["cache_bytes"])
        weights = {result["quantize"]: result["weight_bytes"] for result in told["results"]}
        self.assertLess(weights["int8"], 0.4 * weights["none"])

    def test_reads_as_a_table_for_people(self):
        ended = succeed(1, "evaluate", "speed", "--checkpoint", checkpoint(), "--prompt-tokens", 4,
                        "--generated-tokens", "1,2", "--repetitions", 1)
        heading, columns, *rows = ended.out.splitlines()
        self.assertRegex(heading, r"step-00000150, 1 rank; a rank reads memory at .*/s$")
        self.assertIn("decode tokens/s", columns)
        self.assertRegex(rows[0], r"^fp32 +none +4 +1 +1 +[\d.]+ ms +[\d.]+ \+- 0\.0 +- +- ")
        self.assertRegex(rows[1], r"^fp32 +none +4 +2 +1 +[\d.]+ ms +[\d.]+ \+- 0\.0 +[\d.]+ \+- 0\.0 +\d+ % ")
        self.assertEqual(len(rows), 2)

    def test_what_cannot_be_measured_is_a_usage_error(self):
        for wrong, words in ((("--prompt-tokens", "4,60"), "64 positions"), (("--generated-tokens", "0"), "at least 1"),
                             (("--batch", "-1"), "--batch"), (("--repetitions", "0"), "--repetitions"),
                             (("--quantize", "int8,int3"), "int3"), (("--precision", "fp32,fp7"), "fp7")):
            with self.subTest(wrong=wrong):
                ended = run(2, "evaluate", "speed", "--checkpoint", checkpoint(), *wrong)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(words, ended.err)


class Split(unittest.TestCase):
    """One model whose parts are on several ranks tells what one rank tells."""

    @staticmethod
    def odd():
        """Nine heads over three of keys and values, and a vocabulary that nothing divides."""
        model = world.write_model("odd.json", vocab_size=321, hidden_size=36, num_attention_heads=9,
                                  num_key_value_heads=3, head_dim=32, intermediate_size=96, tie_word_embeddings=False)
        return checkpoint("odd", model=model)

    @staticmethod
    def write(model, *arguments, ranks=1, temperature=0):
        answers = world.evaluate("generate", "--checkpoint", model, "--prompt", *PROMPTS, "--max-tokens", 20,
                                 "--temperature", temperature, *arguments, ranks=ranks)
        return Generate.texts(answers)

    def refuse(self, ranks, words, *arguments):
        ended = run(ranks, "evaluate", *arguments)
        self.assertEqual(ended.code, 2, ended)
        for word in words:
            self.assertIn(word, ended.err)

    def test_the_text_is_that_of_one_rank(self):
        for model, grids in ((self.odd(), ((2, "tp=2"), (4, "tp=4"), (2, "pp=2"), (4, "tp=2,pp=2"))),
                             (checkpoint(), ((4, "tp=4"), (4, "dp=2,pp=2")))):
            expected = self.write(model)
            for ranks, grid in grids:
                with self.subTest(model=model.name, grid=grid):
                    self.assertEqual(self.write(model, "--shard", grid, "--batch", 3, ranks=ranks), expected)

    def test_the_text_of_quantised_matrices_is_that_of_one_rank(self):
        for form in ("int8", "int4"):
            expected = self.write(self.odd(), "--quantize", form)
            for ranks, grid in ((2, "tp=2"), (4, "tp=2,pp=2")):
                with self.subTest(form=form, grid=grid):
                    self.assertEqual(self.write(self.odd(), "--quantize", form, "--shard", grid, ranks=ranks), expected)

    def test_chosen_by_chance_a_text_is_that_of_one_rank_too(self):
        chosen = ("--seed", 5, "--top-p", 0.9)
        self.assertEqual(self.write(checkpoint(), *chosen, "--shard", "tp=2", ranks=2, temperature=1.2),
                         self.write(checkpoint(), *chosen, temperature=1.2))

    def test_one_prompt_is_streamed_once(self):
        arguments = ("evaluate", "generate", "--checkpoint", checkpoint(), "--prompt", "Ada sees", "--max-tokens", 20,
                     "--temperature", 0)
        self.assertEqual(succeed(2, *arguments, "--shard", "pp=2").out, succeed(1, *arguments).out)

    def test_stages_measure_the_loss_of_quantised_matrices(self):
        arguments = ("--checkpoint", self.odd(), "--data", world.val, "--quantize", "int4")
        whole, split = (world.evaluate("loss", *arguments, *shard, ranks=ranks)[0]["loss"]
                        for ranks, shard in ((1, ()), (2, ("--shard", "pp=2"))))
        self.assertAlmostEqual(split / whole, 1, delta=1e-6)
        self.refuse(2, ["tp=2 would cut", "these fit: dp=2; cp=2; pp=2"], "loss", *arguments, "--shard", "tp=2")

    def test_speed_is_of_all_ranks_together(self):
        arguments = ("--checkpoint", self.odd(), "--prompt-tokens", 5, "--generated-tokens", 4, "--repetitions", 1)
        whole, split = (world.evaluate("speed", *arguments, *shard, ranks=ranks)
                        for ranks, shard in ((1, ()), (3, ("--shard", "tp=3"))))
        self.assertEqual((split["ranks"], split["copies"]), (3, 1))
        self.assertAlmostEqual(split["results"][0]["cache_bytes"] * 3, whole["results"][0]["cache_bytes"])
        self.assertLess(split["results"][0]["weight_bytes"], 0.5 * whole["results"][0]["weight_bytes"])

    def test_a_cache_in_eight_bits_takes_a_fraction_of_the_memory_and_writes_the_same(self):
        arguments = ("--checkpoint", self.odd(), "--prompt-tokens", 5, "--generated-tokens", 4, "--repetitions", 1)
        whole, coded = (world.evaluate("speed", *arguments, "--kv-cache", form)["results"][0]["cache_bytes"]
                        for form in ("none", "int8"))
        self.assertEqual(coded * 128, whole * 36)  # heads of 32 numbers
        self.assertEqual(self.write(self.odd(), "--kv-cache", "int8"), self.write(self.odd()))
        self.refuse(1, ["int4"], "generate", "--checkpoint", self.odd(), "--prompt", "Ada", "--kv-cache", "int4")

    def test_grids_that_cannot_decode_are_refused_with_those_that_can(self):
        for words, *shard in ((["cp=2", "these fit: dp=2; pp=2; tp=2"], "--shard", "cp=2"),
                              (["a grid of 1 ranks, but there are 2"], "--shard", "dp=1"),
                              (["column 16", "groups of 32", "these fit: dp=2; pp=2"], "--shard", "tp=2", "--quantize",
                               "int8")):
            with self.subTest(shard=shard):
                self.refuse(2, words, "generate", "--checkpoint", checkpoint(), "--prompt", "Ada", *shard)


class Families(unittest.TestCase):
    def test_a_gpt2_model_goes_the_whole_way(self):
        model = world.path("gpt2.json")
        model.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 384, "n_embd": 32, "n_layer": 2, "n_head": 2,
                                     "n_positions": 64}))
        checkpoint("gpt2-run", model=model)
        told = [line for line in world.metrics("gpt2-run") if "evaluation" in line][-1]
        measured = world.evaluate("loss", "--checkpoint", world.path("gpt2-run"), "--data", world.val,
                                  "--sequence-length", SEQUENCE, ranks=2)[0]
        self.assertAlmostEqual(measured["loss"] / told["loss"], 1, delta=1e-6)
        too_long = run(1, "evaluate", "loss", "--checkpoint", world.path("gpt2-run"), "--data", world.val,
                       "--sequence-length", 65)
        self.assertEqual(too_long.code, 2, too_long)
        self.assertIn("64 positions", too_long.err)
        text = world.evaluate("generate", "--checkpoint", world.path("gpt2-run"), "--prompt", "Ada sees",
                              "--temperature", 0)[0]["text"]
        self.assertTrue(text.strip())


if __name__ == "__main__":
    unittest.main(verbosity=2)
