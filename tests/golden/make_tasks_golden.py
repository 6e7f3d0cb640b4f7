"""lm-evaluation-harness over local files: its own task definitions, with documents in place of what it would ask the
hub of data sets for. Needs lm-eval (0.4), torch and transformers.

    tests/golden/make_tasks_golden.py

writes golden/tasks/model, a tiny Hugging Face model of random weights, and golden/tasks/golden.json, what the harness
tells of it.
"""

import csv
import json
import os
import shutil

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1")
import datasets  # noqa: E402
import lm_eval  # noqa: E402
import tasks_golden  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def hellaswag(path):
    return [{**record, "label": str(record["label"])} for record in records(path)]


def arc(path):
    found = []
    for record in records(path):
        if isinstance(record["question"], dict):
            choices = record["question"]["choices"]
            record = {"id": record["id"], "question": record["question"]["stem"], "answerKey": record["answerKey"],
                      "choices": {key: [choice[key] for choice in choices] for key in ("text", "label")}}
        found.append(record)
    return found


def piqa(path):
    labels = path.with_name(path.stem + "-labels.lst").read_text().split()
    return [{**record, "label": int(label)} for record, label in zip(records(path), labels, strict=True)]


def mmlu(path):
    with open(path, newline="") as file:
        return [{"question": row[0], "choices": row[1:5], "answer": "ABCD".index(row[5])} for row in csv.reader(file)]


READERS = {"hellaswag": hellaswag, "arc_easy": arc, "arc_challenge": arc, "piqa": piqa, "mmlu_abstract_algebra": mmlu,
           "mmlu_world_religions": mmlu}

# What the harness asks the hub for, by path and name.
HUB = {("Rowan/hellaswag", None): "hellaswag", ("allenai/ai2_arc", "ARC-Easy"): "arc_easy",
       ("allenai/ai2_arc", "ARC-Challenge"): "arc_challenge", ("baber/piqa", None): "piqa",
       ("allenai/winogrande", "winogrande_xl"): "winogrande",
       ("EleutherAI/lambada_openai", "default"): "lambada_openai",
       ("openai/gsm8k", "main"): "gsm8k", ("cais/mmlu", "abstract_algebra"): "mmlu_abstract_algebra",
       ("cais/mmlu", "world_religions"): "mmlu_world_religions"}


def serve_local_files(folder):
    """Lets datasets.load_dataset answer with what stands in the local files."""

    def load(path=None, name=None, **_):
        task = HUB[path, name]
        file, examples = tasks_golden.TASKS[task]
        reader = READERS.get(task, records)
        test = datasets.Dataset.from_list(reader(folder / file))
        dev = datasets.Dataset.from_list(reader(folder / examples)) if examples else test
        return datasets.DatasetDict({"train": test, "dev": dev, "validation": test, "test": test})

    datasets.load_dataset = load


def definition(name, manager):
    """The harness's task by its name; measured, and its examples taken, where ours are."""
    examples = "dev" if tasks_golden.TASKS[name][1] else "test"
    change = {"test_split": "test", "fewshot_split": examples,
              "fewshot_config": {"sampler": "first_n", "split": examples}}
    if name == "gsm8k":
        change["generation_kwargs"] = {"until": ["Question:", "</s>", "<|im_end|>"], "do_sample": False,
                                       "temperature": 0.0, "max_gen_toks": tasks_golden.MAX_TOKENS}
    # Tasks can be changed by name only through files; this is what reading such a file ends in.
    return manager._factory.build(manager._entry(name), overrides=change, registry=manager._index)


def reduced(sample):
    """What tasks_golden compares of a sample."""
    told = sample["filtered_resps"]
    kept = {"doc_id": sample["doc_id"], "filter": sample["filter"],
            "metrics": {metric: float(sample[metric]) for metric in sample["metrics"]}}
    if sample["filter"] == "none":
        pairs = told if isinstance(told[0], (list, tuple)) else [told]
        kept["scores"] = [[float(likelihood), str(greedy) == "True"] for likelihood, greedy in pairs]
    else:
        kept.update(text=sample["resps"][0][0], answer=told[0])
    return kept


def harness(model, mode, manager, limit=None):
    """The harness's side of a mode."""
    shots, chat = tasks_golden.MODES[mode]
    names = tasks_golden.tasks_of(mode)
    told = lm_eval.simple_evaluate(model=model, tasks=[definition(name, manager) for name in names], num_fewshot=shots,
                                   apply_chat_template=chat, fewshot_as_multiturn=chat, limit=limit,
                                   bootstrap_iters=1000, log_samples=True, task_manager=manager)
    # The error of a perplexity is drawn at random there.
    return {name: {"results": {key: value for key, value in told["results"][name].items()
                               if "," in key and not key.startswith("perplexity_stderr")},
                   "samples": [reduced(sample) for sample in told["samples"][name]]} for name in names}


def open_model(folder):
    return HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=4)


CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
          "+ '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def make_model(folder):
    """A model of 128 positions, so that some prompts are too long for it."""
    import tokenizers
    import torch
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=448, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = [path.read_text() for path in sorted(tasks_golden.FILES.glob("*.*")) if path.suffix in (".jsonl", ".csv")]
    tokenizer.train_from_iterator(texts, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|endoftext|>",
                                                eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=CHATML)
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=448, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.2,
        bos_token_id=0, eos_token_id=2))
    model.to(torch.bfloat16).save_pretrained(folder)
    fast.save_pretrained(folder)


def main():
    folder = tasks_golden.FILES / "model"
    shutil.rmtree(folder, ignore_errors=True)
    make_model(folder)
    serve_local_files(tasks_golden.FILES)
    model, manager = open_model(folder), TaskManager()
    golden = {mode: harness(model, mode, manager) for mode in tasks_golden.MODES}
    (tasks_golden.FILES / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
