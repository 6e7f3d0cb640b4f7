"""What a user of Hugging Face does, for three_methods.py: the default path.

    huggingface.py make CONFIG.json FOLDER                 a model with initial weights
    huggingface.py train FOLDER ROWS OUTPUT [options]      trains it by Trainer; under torchrun on several ranks
    huggingface.py generate FOLDER [options]               how fast generate() answers

ROWS is what training_rows writes. Everything that is no option here is Trainer's default: fp32, fused AdamW, gradients clipped at a
norm of 1, DistributedDataParallel. `train` writes a file OUTPUT/rank-N.json for each rank; `generate` prints JSON.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import time

import numpy
import torch
import transformers


def peak_resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make(options):
    torch.manual_seed(0)
    configuration = transformers.AutoConfig.for_model(**json.loads(pathlib.Path(options.configuration).read_text()))
    transformers.AutoModelForCausalLM.from_config(configuration, dtype=torch.float32).save_pretrained(options.folder)


class Rows(torch.utils.data.Dataset):
    """Tokens and their targets; the last target of a row is the first token of the next window, which no shift gives."""

    def __init__(self, path, length):
        self.rows = numpy.fromfile(path, numpy.int32).reshape(-1, 2, length).astype(numpy.int64)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        tokens, targets = (torch.from_numpy(values) for values in self.rows[index])
        return {"input_ids": tokens, "labels": targets, "shift_labels": targets}


class Record(transformers.TrainerCallback):
    """Times, losses, and the largest memory up to the end of the last step."""

    def __init__(self):
        self.ends, self.losses, self.peak = [], [], 0

    def on_step_end(self, arguments, state, control, **_):
        self.ends.append(time.perf_counter())
        self.peak = peak_resident()

    def on_log(self, arguments, state, control, logs=None, **_):
        if "loss" in logs:
            self.losses.append(logs["loss"])


class InOrder(transformers.Trainer):
    """The rows as they come, and the learning rates of `pretrain --schedule cosine`, so that both train alike."""

    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)

    def create_scheduler(self, num_training_steps, optimizer=None):
        warm, last = self.args.warmup_steps, 0.1

        def share(steps_done):
            step = steps_done + 1
            if step <= warm:
                return step / warm
            part = min((step - warm) / max(num_training_steps - warm, 1), 1)
            return last + (1 - last) * 0.5 * (1 + numpy.cos(numpy.pi * part))

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
        return self.lr_scheduler


def train(options):
    on_gpu = torch.cuda.is_available()
    record = Record()
    arguments = transformers.TrainingArguments(
        output_dir=options.output, max_steps=options.steps, per_device_train_batch_size=options.batch,
        learning_rate=options.learning_rate, warmup_steps=options.warmup_steps, logging_steps=1, logging_nan_inf_filter=False,
        save_strategy="steps" if options.saves else "no", save_steps=1, save_total_limit=1, report_to="none", disable_tqdm=True,
        remove_unused_columns=False,  # else shift_labels are no column that it knows
        use_cpu=not on_gpu, ddp_backend="gloo" if not on_gpu and "RANK" in os.environ else None)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32)
    trainer = InOrder(model=model, args=arguments, train_dataset=Rows(options.rows, options.sequence_length),
                      callbacks=[record])
    trainer.train()
    seconds = [end - begin for begin, end in zip(record.ends, record.ends[1:])]
    result = {"step_seconds": seconds, "losses": record.losses, "peak_memory_bytes": record.peak}
    if options.saves:
        result["peak_memory_bytes"] = peak_resident()
    if on_gpu:
        result["device_memory_bytes"] = torch.cuda.max_memory_reserved()
    if not options.measure_only:
        trainer.save_model(options.output)
    rank = os.environ.get("RANK", "0")
    (pathlib.Path(options.output) / f"rank-{rank}.json").write_text(json.dumps(result))


def generate(options):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).to(device).eval()
    prompt = torch.randint(0, model.config.vocab_size, (1, options.prompt_tokens), device=device)

    def seconds_of(tokens):
        start = time.perf_counter()
        answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=tokens,
                                min_new_tokens=tokens, pad_token_id=0)
        answer[0, -1].item()  # a GPU may not be done before
        return time.perf_counter() - start

    seconds_of(4)
    first = statistics.median(seconds_of(1) for _ in range(options.repetitions))
    whole = statistics.median(seconds_of(options.generated_tokens) for _ in range(options.repetitions))
    print(json.dumps({"first_token_seconds": first,
                      "decode_tokens_per_second": (options.generated_tokens - 1) / (whole - first)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("make")
    command.add_argument("configuration")
    command.add_argument("folder")
    command.set_defaults(run=make)
    command = commands.add_parser("train")
    command.add_argument("folder")
    command.add_argument("rows")
    command.add_argument("output")
    command.add_argument("--sequence-length", type=int, required=True)
    command.add_argument("--batch", type=int, required=True, help="rows of a rank and step")
    command.add_argument("--steps", type=int, required=True)
    command.add_argument("--learning-rate", type=float, default=3e-4)
    command.add_argument("--warmup-steps", type=int, default=0)
    command.add_argument("--saves", action="store_true", help="saves after each step, and counts the memory of that too")
    command.add_argument("--measure-only", action="store_true", help="leaves the trained weights out")
    command.set_defaults(run=train)
    command = commands.add_parser("generate")
    command.add_argument("folder")
    command.add_argument("--prompt-tokens", type=int, required=True)
    command.add_argument("--generated-tokens", type=int, required=True)
    command.add_argument("--repetitions", type=int, default=3)
    command.set_defaults(run=generate)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    options.run(options)


if __name__ == "__main__":
    main()
