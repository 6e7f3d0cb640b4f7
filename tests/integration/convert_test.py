"""A trained model goes out to other formats and comes back, and answers the same everywhere."""

import json
import shutil
import unittest

from tandem_runs import SEQUENCE, World, run, succeed

world = World()
USAGE, BAD_DATA = 2, 3


def convert(command, *arguments, ranks=1):
    return json.loads(succeed(ranks, "checkpoint-convert", command, "--json", "--threads", 1, *arguments).out)


def refuse(code, command, *arguments, ranks=1):
    ended = run(ranks, "checkpoint-convert", command, "--threads", 1, *arguments)
    assert ended.code == code, ended
    return ended.err


def trained():
    if not world.path("run").exists():
        world.pretrain("run", 60)
    return world.path("run")


def exported(name, *arguments, ranks=1):
    if not world.path(name).exists():
        convert("export", "--checkpoint", trained(), "--output", world.path(name), *arguments, ranks=ranks)
    return world.path(name)


class Convert(unittest.TestCase):
    def loss(self, checkpoint):
        result = world.evaluate("loss", "--checkpoint", checkpoint, "--data", world.val, "--sequence-length", SEQUENCE)
        return result[0]["loss"]

    def test_every_format_evaluates_to_the_same_loss(self):
        expected = self.loss(trained())
        for name in ("folder", "model.gguf"):
            self.assertEqual(self.loss(exported(name)), expected, name)
        self.assertAlmostEqual(self.loss(exported("q8.gguf", "--type", "q8_0")) / expected, 1, delta=0.01)

    def test_every_format_generates_the_same_text(self):
        texts = [world.evaluate("generate", "--checkpoint", checkpoint, "--prompt", "Ada sees", "--temperature", 0,
                                "--max-tokens", 20)[0]["text"]
                 for checkpoint in (trained(), exported("folder"), exported("model.gguf"))]
        self.assertEqual(texts[1:], texts[:1] * 2)

    def test_what_is_imported_is_exported_again_byte_for_byte(self):
        convert("import", "--input", exported("folder"), "--output", world.path("imported"), ranks=2)
        convert("export", "--checkpoint", world.path("imported"), "--output", world.path("again"))
        names = sorted(path.name for path in exported("folder").iterdir())
        self.assertEqual(sorted(path.name for path in world.path("again").iterdir()), names)
        for name in names:
            self.assertEqual((world.path("again") / name).read_bytes(), (exported("folder") / name).read_bytes(), name)

    def test_verify_compares_the_logits_of_any_two(self):
        text = world.path("text.txt")
        text.write_text("Ada sees a red boat. Ben likes the old house.")
        result = convert("verify", "--checkpoint", trained(), "--against", exported("model.gguf"), "--text", text, ranks=2)
        self.assertGreater(result["logits"]["tokens"], 10)
        self.assertEqual(result["logits"]["max_difference"], 0)
        low = convert("verify", "--checkpoint", trained(), "--against", exported("bf16", "--type", "BF16"), "--text", text)
        self.assertGreater(low["logits"]["max_difference"], 0)
        self.assertLess(low["logits"]["kl"], 1e-2)
        refuse(1, "verify", "--checkpoint", trained(), "--against", exported("bf16"), "--text", text, "--tolerance", 1e-9)

    def test_diff_and_inspect_say_what_there_is(self):
        self.assertTrue(convert("diff", "--checkpoint", trained(), "--against", exported("folder"), ranks=2)["identical"])
        changed = convert("diff", "--checkpoint", trained(), "--against", exported("bf16", "--type", "BF16"))
        self.assertFalse(changed["identical"])
        self.assertIn("layers.0.attention.qkv.weight", [each["name"] for each in changed["differences"]])
        for ranks in (1, 2):
            held = convert("inspect", "--input", exported("model.gguf"), "--hashes", ranks=ranks)
            self.assertEqual(held["values"]["general.architecture"], "llama")
            self.assertEqual(len({tensor["xxh128"] for tensor in held["tensors"]}), len(held["tensors"]))
        self.assertEqual(convert("inspect", "--input", trained())["step"], 60)

    def test_a_resharded_run_holds_the_state_of_the_optimizer_too(self):
        convert("reshard", "--checkpoint", trained(), "--output", world.path("wide"), "--shards", 5, ranks=2)
        self.assertEqual(world.tensors("wide"), world.tensors("run"))
        self.assertIn("optimizer/first_moment/final_norm.weight", world.tensors("wide"))

    def test_the_mean_of_a_model_and_itself_is_the_model(self):
        convert("merge", "--checkpoint", trained(), exported("folder"), "--output", world.path("mean"))
        self.assertTrue(convert("diff", "--checkpoint", world.path("mean"), "--against", trained())["identical"])

    def test_an_export_goes_back_to_the_step_before_a_damaged_one(self):
        world.pretrain("twice", 4, checkpoint_every=2)
        steps = sorted((world.path("twice") / "checkpoints").iterdir())
        convert("export", "--checkpoint", steps[0], "--output", world.path("first"))
        shard = next(steps[1].glob("shard-*"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        for ranks in (1, 2):
            output = world.path(f"gone-back{ranks}")
            ended = succeed(ranks, "checkpoint-convert", "export", "--checkpoint", world.path("twice"), "--output", output)
            self.assertIn("going back to", ended.err)
            for path in world.path("first").iterdir():
                self.assertEqual((output / path.name).read_bytes(), path.read_bytes(), path.name)
            self.assertIn("does not match its checksum",
                          refuse(BAD_DATA, "export", "--checkpoint", steps[1], "--output", world.path("none"), ranks=ranks))
            self.assertEqual(list(world.path("none").parent.glob("none*")), [])

    def test_a_tokenizer_of_sentencepiece_is_named_and_left_out(self):
        def text(value):
            return len(value).to_bytes(8, "little") + value
        content = exported("model.gguf").read_bytes()
        model = b"tokenizer.ggml.model" + (8).to_bytes(4, "little")
        cutting = b"tokenizer.ggml.pre" + (8).to_bytes(4, "little")
        begin = content.index(cutting) + len(cutting)
        name = content[begin + 8:begin + 8 + int.from_bytes(content[begin:begin + 8], "little")]
        # As long as before, so that all tensors keep their places.
        content = content.replace(cutting + text(name), cutting + text(name[:-1])).replace(model + text(b"gpt2"),
                                                                                           model + text(b"llama"))
        world.path("pieces.gguf").write_bytes(content)
        folder = world.path("pieces-folder")
        shutil.copytree(exported("folder"), folder)
        (folder / "tokenizer.json").rename(folder / "tokenizer.model")
        for source in (world.path("pieces.gguf"), folder):
            output = world.path(source.stem + "-run")
            ended = succeed(1, "checkpoint-convert", "import", "--input", source, "--output", output)
            self.assertIn("SentencePiece", ended.err)
            ended = run(1, "evaluate", "generate", "--checkpoint", output, "--prompt", "Ada")
            self.assertEqual(ended.code, BAD_DATA, ended)
            self.assertIn("no tokenizer", ended.err)

    def test_what_cannot_be_is_refused_with_its_code_and_reason(self):
        for ranks in (1, 2):
            cut = world.path(f"cut{ranks}.gguf")
            cut.write_bytes(exported("model.gguf").read_bytes()[:-4000])
            self.assertIn("truncated", refuse(BAD_DATA, "import", "--input", cut, "--output", world.path("none"), ranks=ranks))
            folder = world.path(f"strange{ranks}")
            shutil.copytree(exported("folder"), folder)
            settings = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**settings, "model_type": "mamba"}))
            self.assertIn("mamba", refuse(BAD_DATA, "import", "--input", folder, "--output", world.path("none"), ranks=ranks))
            self.assertFalse(world.path("none").exists())
            self.assertIn("exists", refuse(USAGE, "export", "--checkpoint", trained(), "--output", exported("model.gguf"),
                                           ranks=ranks))
            self.assertIn("Q4_K", refuse(USAGE, "export", "--checkpoint", trained(), "--type", "Q3", "--output",
                                         world.path("none.gguf"), ranks=ranks))
            self.assertIn("does not exist", refuse(USAGE, "inspect", "--input", world.path("nowhere"), ranks=ranks))


if __name__ == "__main__":
    unittest.main()
