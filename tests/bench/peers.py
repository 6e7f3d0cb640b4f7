#!/usr/bin/env python3
"""Speed and memory beside the peers, measured in turns (ours, theirs, ours, theirs...) in one run; prints a table.

  peers.py --bin FOLDER --python PYTHON --text FILE [--llm-c FOLDER] [--rows NAME...] [--turns N]

FOLDER holds our executables; PYTHON has torch, transformers, tiktoken and rustbpe; FILE is 50 MB or more of mixed text;
a checkout of llm.c adds its row, which takes two to three minutes a turn.
Speeds of shared machines drift: only the ratios mean something. See tests/bench/peers.sh, which sets all this up.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import signal
import statistics
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent.parent / "data/models"
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_mpi_yield_when_idle="1")


def run(command):
    """Runs a command; gives its output and the processor seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in command], env=ENVIRONMENT, text=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.bin = options, pathlib.Path(folder), pathlib.Path(options.bin)
        self.runs = 0

    def cut(self, megabytes):
        """The first megabytes of the text, as a file, cut at the end of a line."""
        path = self.folder / f"text-{megabytes}.txt"
        if not path.exists():
            with open(self.options.text, "rb") as source:
                data = source.read(megabytes * 1_000_000)
            path.write_bytes(data[:data.rfind(b"\n") + 1])
        return path

    def tokenizer(self, vocabulary):
        path = self.folder / f"tokenizer-{vocabulary}.json"
        if not path.exists():
            run([self.bin / "tokenize", "train", "--input", self.cut(5), "--vocab-size", vocabulary, "--pattern",
                 "llama3", "--output", path])
        return path

    def dataset(self):
        path = self.folder / "train.h5"
        if not path.exists():
            run([self.bin / "tokenize", "encode", "--tokenizer", self.tokenizer(4096), "--input", self.cut(5),
                 "--output", path])
        return path

    def pretrain(self, model, batch, length, steps=5, ranks=1, threads=2, more=()):
        """Trains some steps; gives the records of metrics.jsonl and the log."""
        self.runs += 1
        output = self.folder / f"run-{self.runs}"
        log, _ = run([*(["mpirun", "-n", ranks, "--bind-to", "none"] if ranks > 1 else []), self.bin / "pretrain",
                      "--model", MODELS / f"{model}.json", "--data", self.dataset(), "--output", output,
                      "--steps", steps, "--batch-tokens", batch * length, "--sequence-length", length,
                      "--threads", threads, *more])
        records = [json.loads(line) for line in open(output / "metrics.jsonl")]
        subprocess.run(["rm", "-rf", output / "checkpoints"])
        return records, log

    def our_training(self, *arguments, **options):
        records, _ = self.pretrain(*arguments, **options)
        return (statistics.median(r["tokens_per_second"] for r in records[1:]), records[-1]["peak_memory_bytes"])

    def torch_training(self, model, batch, length):
        output, _ = run([self.options.python, HERE / "peers/torch_train.py", "--model", MODELS / f"{model}.json",
                         "--batch", batch, "--sequence-length", length])
        record = json.loads(output[output.index('{"tokens_per_second"'):].splitlines()[0])
        return statistics.median(record["tokens_per_second"]), record["peak_memory_bytes"]

    def in_turns(self, ours, theirs):
        a, b = [], []
        for _ in range(self.options.turns):
            a.append(ours())
            b.append(theirs())
        return a, b

    def training(self, model, batch, length, speed_goal, memory_goal=None):
        a, b = self.in_turns(lambda: self.our_training(model, batch, length),
                             lambda: self.torch_training(model, batch, length))
        ours, theirs = (statistics.median(x[0] for x in side) for side in (a, b))
        row(f"train {model}, {batch} x {length}", "PyTorch eager", f"{ours:.0f} tokens/s", f"{theirs:.0f}", ours / theirs,
            speed_goal)
        if memory_goal:
            ours, theirs = (max(x[1] for x in side) for side in (a, b))
            row("its peak memory", "PyTorch eager", f"{ours / 2**30:.2f} GiB", f"{theirs / 2**30:.2f}", ours / theirs,
                memory_goal, smaller_is_better=True)

    def llm_c(self):
        if not self.options.llm_c:
            return

        def theirs():
            output, _ = run([self.options.python, HERE / "peers/llm_c.py", "--source", self.options.llm_c, "--batch", 4,
                             "--sequence-length", 256])
            return statistics.median(json.loads(output.strip().splitlines()[-1])["tokens_per_second"][1:])

        a, b = self.in_turns(lambda: self.our_training("gpt2-124m", 4, 256)[0], theirs)
        ours, theirs = statistics.median(a), statistics.median(b)
        row("train gpt2-124m, 4 x 256", "llm.c", f"{ours:.0f} tokens/s", f"{theirs:.0f}", ours / theirs, 3)

    def ranks(self):
        shape = ("llama-39m", 4, 256)
        a, b = self.in_turns(lambda: self.our_training(*shape, ranks=2, threads=1),
                             lambda: self.our_training(*shape, ranks=1, threads=2))
        ours, theirs = (statistics.median(x[0] for x in side) for side in (a, b))
        row("2 ranks x 1 thread", "1 rank x 2 threads", f"{ours:.0f} tokens/s", f"{theirs:.0f}", ours / theirs, 0.9)

    def encode(self):
        text, tokenizer = self.cut(50), self.tokenizer(32768)

        def ours():
            _, seconds = run([self.bin / "tokenize", "encode", "--tokenizer", tokenizer, "--input", text, "--output",
                              self.folder / "encoded.h5", "--threads", 1])
            return text.stat().st_size / 1e6 / seconds

        self.tokenizer_row("encode 50 MB, HDF5 included", "tiktoken", ours, ["encode", tokenizer, text], 4)

    def train_tokenizer(self):
        text = self.cut(20)

        def ours():
            _, seconds = run([self.bin / "tokenize", "train", "--input", text, "--document-separator", "\\n\\n",
                              "--vocab-size", 32768, "--pattern", "llama3", "--output", self.folder / "t.json",
                              "--threads", 1])
            return text.stat().st_size / 1e6 / seconds

        self.tokenizer_row("train a vocabulary of 32768 on 20 MB", "rustbpe", ours, ["train", text, 32768], 2)

    def tokenizer_row(self, what, peer, ours, arguments, goal):
        def theirs():
            output, _ = run([self.options.python, HERE / "peers/tokenizer.py", *arguments])
            return json.loads(output.strip().splitlines()[-1])["mb_per_cpu_second"]

        a, b = self.in_turns(ours, theirs)
        a, b = statistics.median(a), statistics.median(b)
        row(what, peer, f"{a:.1f} MB per core second", f"{b:.1f}", a / b, goal)

    def checkpoint(self):
        """Writing beside a plain copy to disk, and the steps meanwhile beside steps without writing."""
        def ours():
            records, log = self.pretrain("gpt2-124m", 1, 64, steps=12, more=["--checkpoint-every", 6])
            rate = max(size(*match) for match in re.findall(r"s, ([\d.]+) (\wiB)/s", log))
            seconds = [r["step_seconds"] - r["checkpoint_seconds"] for r in records]
            return rate, statistics.median(seconds[2:6]) / statistics.median(seconds[6:10])

        def theirs():
            target = self.folder / "dd"
            start = time.perf_counter()
            run(["dd", "if=/dev/zero", f"of={target}", "bs=16M", "count=90", "conv=fsync"])
            target.unlink()
            return 90 * 16 * 2**20 / (time.perf_counter() - start)

        def steps_beside_dd():
            """The share of their speed that is left to steps while dd writes all the time."""
            target = self.folder / "dd"
            copy = f"while dd if=/dev/zero of={target} bs=16M count=90 oflag=direct conv=fsync 2>/dev/null; do :; done"
            seconds = {}
            for beside in (False, True):
                writer = subprocess.Popen(["sh", "-c", copy], start_new_session=True) if beside else None
                records, _ = self.pretrain("gpt2-124m", 1, 64, steps=8)
                seconds[beside] = statistics.median(r["step_seconds"] - r["checkpoint_seconds"] for r in records[2:])
                if writer:
                    os.killpg(writer.pid, signal.SIGKILL)
                    writer.wait()
            target.unlink(missing_ok=True)
            return seconds[False] / seconds[True]

        a, b = self.in_turns(ours, theirs)
        rate, peer = statistics.median(x[0] for x in a), statistics.median(b)
        row("write a checkpoint of 1.4 GB", "dd conv=fsync", f"{rate / 1e6:.0f} MB/s", f"{peer / 1e6:.0f}", rate / peer, 0.8)
        share = statistics.median(x[1] for x in a)
        row("steps while it is written", "steps without", "", "", share, 0.95)
        # Where a disk is emulated, that takes time from the cores whoever writes.
        beside_dd = statistics.median(steps_beside_dd() for _ in range(self.options.turns))
        row("steps while it is written", "steps while dd writes", f"{share:.2f} of full speed", f"{beside_dd:.2f}",
            share / beside_dd, 1)


def size(number, unit):
    return float(number) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


def row(what, peer, ours, theirs, ratio, goal, smaller_is_better=False):
    reached = ratio <= goal if smaller_is_better else ratio >= goal
    sign = "<=" if smaller_is_better else ">="
    print(f"| {what} | {peer} | {ours} | {theirs} | {ratio:.2f} | {sign} {goal} | {'yes' if reached else 'NO'} |", flush=True)


ROWS = {
    "gpt2-124m": lambda b: b.training("gpt2-124m", 4, 256, 1.3, memory_goal=0.6),
    "llm-c": Bench.llm_c,
    "gpt2-5.9m": lambda b: b.training("gpt2-5.9m", 8, 256, 1.2),
    "llama-39m": lambda b: b.training("llama-39m", 2, 512, 1.2),
    "ranks": Bench.ranks,
    "encode": Bench.encode,
    "train-tokenizer": Bench.train_tokenizer,
    "checkpoint": Bench.checkpoint,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--llm-c", help="a checkout of llm.c")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print("| work | peer | ours | peer's | ratio | goal | reached |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        for name in options.rows:
            ROWS[name](bench)


if __name__ == "__main__":
    main()
