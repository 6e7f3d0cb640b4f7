"""What evaluate tasks tells of the files in golden/tasks beside what lm-evaluation-harness told of them.

The harness's side is a dictionary: {mode: {task: {"results": {"acc,none": ...}, "samples": [...]}}}, a sample being
{"doc_id", "filter", "scores": [[log likelihood, greedy], ...], "text", "answer", "metrics": {"acc": 1.0}}.
"""

import pathlib

FILES = pathlib.Path(__file__).parent / "tasks"
MAX_TOKENS = 40
MODES = {"plain": (0, False), "few-shot": (2, False), "chat": (0, True), "few-shot chat": (2, True)}

# The file of each task, and the one that its examples are taken from where it is another.
TASKS = {"hellaswag": ("hellaswag_val.jsonl", None), "arc_easy": ("ARC-Easy-Test.jsonl", None),
         "arc_challenge": ("arc_challenge_hub.jsonl", None), "piqa": ("valid.jsonl", None),
         "winogrande": ("winogrande_dev.jsonl", None), "lambada_openai": ("lambada_test.jsonl", None),
         "gsm8k": ("gsm8k_test.jsonl", None), "mmlu_abstract_algebra": ("abstract_algebra_test.csv",
                                                                        "abstract_algebra_dev.csv"),
         "mmlu_world_religions": ("world_religions_test.csv", None)}


def tasks_of(mode):
    """Two examples besides the item itself are more than the smallest file has."""
    return [name for name in TASKS if not (MODES[mode][0] and name == "mmlu_world_religions")]


def arguments(mode, files=FILES):
    """Of evaluate tasks, for all tasks of a mode."""
    shots, chat = MODES[mode]
    names = tasks_of(mode)
    examples = [files / TASKS[name][1] for name in names if TASKS[name][1]]
    return ["--few-shot", shots, "--max-tokens", MAX_TOKENS, *(["--chat"] if chat else []),
            *(["--few-shot-from", *examples] if shots else []), "--task", *[files / TASKS[name][0] for name in names]]


class Comparison:
    """Counts what differs: log likelihoods by more than 1e-3, anything else at all."""

    def __init__(self):
        self.differences = []
        self.items = 0
        self.largest = 0.0

    def demand(self, holds, what):
        if not holds:
            self.differences.append(what)

    def compare(self, results, log, theirs):
        """`results` and `log` are what evaluate tasks told, `theirs` the harness's side of one mode."""
        for name, task in theirs.items():
            for key, value in task["results"].items():
                own = results["results"][name].get(key)
                same = own == value or (isinstance(own, float) and abs(own - value) <= 1e-3 * max(1, abs(value)))
                self.demand(same, f"{name}: {key} {value} and {own}")
            mine = {sample["doc_id"]: sample for sample in log if sample["task"] == name}
            for sample in task["samples"]:
                self.sample(f"{name}, item {sample['doc_id']}", mine[sample["doc_id"]], sample)

    def sample(self, place, mine, theirs):
        self.items += 1
        if theirs["filter"] == "none":
            self.demand(len(theirs["scores"]) == len(mine["resps"]), f"{place}: number of choices")
            for (likelihood, greedy), (own, own_greedy) in zip(theirs["scores"], mine["resps"]):
                self.largest = max(self.largest, abs(likelihood - own))
                self.demand(abs(likelihood - own) <= 1e-3, f"{place}: log likelihood {likelihood} and {own}")
                self.demand(greedy == own_greedy, f"{place}: greedy")
        else:
            own = mine["resps"][0]
            self.demand(theirs["text"] == own, f"{place}: text {theirs['text']!r} and {own!r}")
            self.demand(theirs["answer"] == mine["filtered_resps"][theirs["filter"]], f"{place}: answer")
        for metric, value in theirs["metrics"].items():
            own = mine[f"{metric},{theirs['filter']}"]
            self.demand(abs(value - own) <= 1e-3, f"{place}: {metric} {value} and {own}")
