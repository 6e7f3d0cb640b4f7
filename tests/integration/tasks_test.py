"""evaluate tasks tells what lm-evaluation-harness told of the same model and files, at any rank count and batch."""

import json
import pathlib
import subprocess
import sys
import unittest

from tandem_runs import BUILD, FOLDER, run, succeed

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
import tasks_golden  # noqa: E402

MODEL = tasks_golden.FILES / "model"
GOLDEN = json.loads((tasks_golden.FILES / "golden.json").read_text())
DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "tasks"
HELLASWAG = tasks_golden.FILES / "hellaswag_val.jsonl"


def measure(*arguments, ranks=1, model=MODEL):
    """The results, and the log of items."""
    log = FOLDER / "items.jsonl"
    ended = succeed(ranks, "evaluate", "tasks", "--checkpoint", model, "--json", "--log", log, *arguments)
    return json.loads(ended.out), [json.loads(line) for line in log.read_text().splitlines()]


def write(name, text):
    path = FOLDER / name
    path.write_text(text)
    return path


class Tasks(unittest.TestCase):
    maxDiff = None

    def compare(self, mode, results, log):
        comparison = tasks_golden.Comparison()
        comparison.compare(results, log, GOLDEN[mode])
        self.assertEqual(comparison.differences, [])
        self.assertGreater(comparison.items, 30)

    def test_tell_what_the_harness_tells(self):
        for mode, ranks, batch in (("plain", 1, 1), ("few-shot", 2, 3), ("chat", 2, 8), ("few-shot chat", 1, 8)):
            with self.subTest(mode):
                self.compare(mode, *measure("--batch", batch, *tasks_golden.arguments(mode), ranks=ranks))

    def test_are_the_same_at_any_rank_count_and_batch(self):
        expected, log = measure("--batch", 1, *tasks_golden.arguments("few-shot"))
        for ranks, batch, *split in ((1, 8), (2, 1), (3, 4), (2, 4, "--shard", "pp=2"), (4, 4, "--shard", "dp=2,tp=2")):
            with self.subTest(ranks=ranks, batch=batch, split=split):
                results, own = measure("--batch", batch, *split, *tasks_golden.arguments("few-shot"), ranks=ranks)
                for task, metrics in expected["results"].items():
                    for name, value in metrics.items():
                        told = results["results"][task][name]
                        if isinstance(value, float):  # a perplexity of this model is some millions
                            self.assertAlmostEqual(told, value, delta=1e-5 * max(1, value))
                        else:
                            self.assertEqual(told, value)
                self.assertEqual([(one["task"], one["doc_id"]) for one in own],
                                 [(one["task"], one["doc_id"]) for one in log])

    def test_of_a_group_are_weighted_by_their_items(self):
        results, _ = measure("--task", *(tasks_golden.FILES / name for name in ("abstract_algebra_test.csv",
                                                                               "world_religions_test.csv")))
        parts = [(results["results"][name]["acc,none"], results["n-samples"][name]["effective"])
                 for name in ("mmlu_abstract_algebra", "mmlu_world_religions")]
        self.assertEqual([count for _, count in parts], [3, 2])
        self.assertAlmostEqual(results["groups"]["mmlu"]["acc,none"], sum(acc * count for acc, count in parts) / 5)

    def test_can_be_limited_to_their_first_items(self):
        results, log = measure("--limit", 2, "--task", HELLASWAG)
        self.assertEqual(results["n-samples"]["hellaswag"], {"original": 5, "effective": 2})
        self.assertEqual([one["doc_id"] for one in log], [0, 1])

    def test_read_as_lines_for_people(self):
        ended = succeed(1, "evaluate", "tasks", "--checkpoint", MODEL, "--task", HELLASWAG)
        self.assertRegex(ended.out, r"(?m)^hellaswag +acc +\d\.\d{4} \+- \d\.\d{4}  of 5 items$")

    def test_one_writes_oneself_are_read_too(self):
        name = "own " * 50
        ended = succeed(1, "evaluate", "tasks", "--checkpoint", MODEL, "--task", write("long.json", json.dumps(
            {"task": name, "kind": "multiple_choice", "items": [{"question": "a", "choices": ["b", "c"], "answer": 0}]})))
        self.assertRegex(ended.out, rf"(?m)^{name} acc +[01]\.0000  of 1 items$")
        own = write("own.json", json.dumps({"task": "own", "kind": "generation", "prompt": "Q: {question}\nA:",
                                            "until": ["\n"], "max_tokens": 3, "match": "number",
                                            "items": [{"question": "2 + 2?", "answer": "4"}]}))
        results, log = measure("--task", own)
        self.assertIn("exact_match,none", results["results"]["own"])
        self.assertEqual(log[0]["arguments"], [["Q: 2 + 2?\nA:", ""]])

    def test_of_the_quickstart_ask_what_its_conversations_do_not_teach(self):
        taught = subprocess.run([BUILD / "bin" / "make-conversations"], stdout=subprocess.PIPE, check=True, text=True)
        turns = {turn["content"] for line in taught.stdout.splitlines() for turn in json.loads(line)["messages"]}
        asked = [json.loads(line) for line in (DATA / "conversations.jsonl").read_text().splitlines()]
        self.assertGreater(len(asked), 50)
        for item in asked:
            self.assertNotIn(item["question"], turns)
        results, _ = measure("--limit", 3, "--task", DATA / "conversations.json", DATA / "conversations-written.json")
        self.assertEqual(set(results["results"]), {"conversations", "conversations_written"})

    def refused(self, code, words, *arguments):
        ended = run(2, "evaluate", "tasks", "--checkpoint", MODEL, *arguments)
        self.assertEqual(ended.code, code, ended)
        for word in words:
            self.assertIn(word, ended.err)

    def test_that_are_damaged_are_refused_with_file_line_and_reason(self):
        lines = HELLASWAG.read_text().splitlines()
        cut = write("cut.jsonl", lines[0] + "\n\n" + lines[1][:50] + "\n")
        self.refused(3, ["cut.jsonl', line 3", "no JSON"], "--task", cut)
        empty = write("empty.json", json.dumps({"task": "own", "kind": "generation", "max_tokens": 3, "items": [
            {"question": "a", "answer": "b"}, {"question": "", "answer": "b"}]}))
        self.refused(3, ["empty.json', item 2", "prompt is empty"], "--task", empty)

    def test_that_cannot_be_done_are_usage_errors(self):
        self.refused(2, ["hellaswag has 4 examples", "5 are asked for"], "--task", HELLASWAG, "--few-shot", 5)
        self.refused(2, ["second file of the task hellaswag"], "--task", HELLASWAG, HELLASWAG)
        self.refused(2, ["256 tokens", "128 positions", "--max-tokens"], "--task",
                     tasks_golden.FILES / "gsm8k_test.jsonl")
        self.refused(2, ["--system", "--chat"], "--task", HELLASWAG, "--system", "Be brief.")
        other = write("other.json", json.dumps({"task": "hellaswag", "kind": "cloze", "items": [{"question": "a", "answer": "b"}] * 9}))
        arc = tasks_golden.FILES / "ARC-Easy-Test.jsonl"
        for words, more in ((["another kind"], (other, "--few-shot", 2)), (["arc_easy", "not measured"], (arc, "--few-shot", 2)),
                            (["goes with --few-shot"], (HELLASWAG,))):
            self.refused(2, words, "--task", HELLASWAG, "--few-shot-from", *more)


if __name__ == "__main__":
    unittest.main()
