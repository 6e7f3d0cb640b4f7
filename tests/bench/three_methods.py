#!/usr/bin/env python3
"""The same model, data and tokens, trained by three methods, in turns; prints a table. three_methods.sh sets this up.

(a) Hugging Face's Trainer with its defaults, DistributedDataParallel under torchrun
(b) ours, mixed precision (bf16), plain all-reduce data parallel
(c) ours, sharded as planned (--shard auto)

All begin with the same weights, take the same rows in the same order at the same learning rates, with the same AdamW.
"""
import argparse
import json
import math
import os
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
GIB = 2**30
# A model of which nothing is left but the program that trains it: what its process has is the base of memory.
NOTHING = {"model_type": "llama", "vocab_size": 4096, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
           "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048, "tie_word_embeddings": True}
OPTIMIZER = ["--learning-rate", "3e-4", "--schedule", "cosine", "--last-fraction", "0.1", "--beta1", "0.9", "--beta2", "0.999",
             "--epsilon", "1e-8", "--weight-decay", "0", "--clip-norm", "1"]  # Trainer's, but for the schedule


def fail(what, output):
    raise SystemExit(f"three_methods: {what}:\n{output[-4000:]}")


def processor_seconds():
    """Of all that has been run so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def finish(process, command):
    output = process.communicate()[0]
    if process.returncode != 0:
        fail(f"{command} failed with {process.returncode}", output)
    return output


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.bin, self.tests = (pathlib.Path(options.build).resolve() / name for name in ("bin", "tests"))
        self.on_gpu = pathlib.Path(options.build).name == "cuda"
        self.threads = max(1, len(os.sched_getaffinity(0)) // options.ranks)
        self.runs = 0
        self.environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                OMPI_MCA_mpi_yield_when_idle="1", TOKENIZERS_PARALLELISM="false", PYTHONWARNINGS="ignore")
        if not self.on_gpu:
            self.environment["OMP_NUM_THREADS"] = str(self.threads)

    # Commands, on this machine or on the two hosts.

    def start(self, command, host=None):
        words = [str(word) for word in command]
        if host is not None:
            words = [str(TREE / "tests/cluster/host_agent.sh"), f"{self.options.subnet}.{host}", shlex.join(words)]
        return subprocess.Popen(words, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def call(self, *command):
        return finish(self.start(command), command[0])

    def call_json(self, *command):
        """What a command prints on its standard output alone."""
        done = subprocess.run([str(word) for word in command], env=self.environment, text=True, capture_output=True)
        if done.returncode != 0:
            fail(f"{command[0]} failed with {done.returncode}", done.stderr)
        return json.loads(done.stdout)

    def mpirun(self, *command):
        launch = ["mpirun", "-n", self.options.ranks, "--bind-to", "none", "--oversubscribe"]
        if not self.options.subnet:
            # Each rank in a session of its own, as torchrun starts its workers: the kernel shares a busy machine out by session.
            return self.call(*launch, "setsid", "--wait", *command)
        network = f"{self.options.subnet}.0/24"
        hosts = self.folder / "hosts"
        hosts.write_text("".join(f"{self.options.subnet}.{k} slots={self.options.ranks // 2}\n" for k in (1, 2)))
        launch += ["--hostfile", hosts, "--mca", "plm_rsh_agent", TREE / "tests/cluster/host_agent.sh", "--mca",
                   "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network]
        return finish(self.start([*launch, *command], host=1), command[0])

    def torchrun(self, *command):
        if self.options.ranks == 1:
            return self.call(sys.executable, *command)
        launch = [sys.executable, "-m", "torch.distributed.run"]
        if not self.options.subnet:
            return self.call(*launch, "--standalone", "--nproc-per-node", self.options.ranks, *command)
        self.environment["GLOO_SOCKET_IFNAME"] = "eth0"
        launch += ["--nnodes", 2, "--nproc-per-node", self.options.ranks // 2, "--master-addr", f"{self.options.subnet}.1",
                   "--master-port", 29411]
        started = [self.start([*launch, "--node-rank", k - 1, *command], host=k) for k in (1, 2)]
        return "".join(finish(process, "torchrun") for process in started)

    # Data, and what all begin with.

    def prepare(self):
        text = self.options.text
        if text is None:
            text = self.folder / "stories.jsonl"
            with open(text, "w") as file:
                subprocess.run([self.bin / "make-stories", "--bytes", "4000000"], stdout=file, check=True)
        tokenizer = self.folder / "tokenizer.json"
        self.call(self.bin / "tokenize", "train", "--input", text, "--vocab-size", 4096, "--pattern", "gpt2", "--special",
                  "<|endoftext|>", "--output", tokenizer)
        self.call(self.bin / "tokenize", "encode", "--tokenizer", tokenizer, "--input", text, "--output", self.data(),
                  "--val-fraction", 0.05, "--val-output", self.folder / "val.h5")
        (self.folder / "nothing.json").write_text(json.dumps(NOTHING))
        self.begin(TREE / f"data/models/{self.options.model}.json", "model")
        self.begin(self.folder / "nothing.json", "nothing")

    def data(self):
        return self.folder / "train.h5"

    def begin(self, configuration, name):
        """Initial weights, in both forms. GPT-2 is trained without dropout, which the default would have."""
        fields = json.loads(pathlib.Path(configuration).read_text())
        if fields["model_type"] == "gpt2":
            fields.update(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(fields))
        self.call(sys.executable, HERE / "peers/huggingface.py", "make", path, self.folder / f"{name}-hf")
        self.call(self.bin / "checkpoint-convert", "import", "--input", self.folder / f"{name}-hf", "--output",
                  self.folder / name)

    def rows(self, count):
        path = self.folder / f"rows-{count}"
        if not path.exists():
            self.call(self.tests / "training_rows", self.data(), self.options.sequence_length, count, path)
        return path

    # Training. Each gives seconds of the steps but the first, losses, bytes of memory at the peak, and where the model is.

    def train_default(self, model="model", steps=None, rows=None, saves=False):
        steps, rows = steps or self.options.steps, rows or self.options.rows
        output = self.new_folder()
        ranks = self.options.ranks
        self.torchrun(HERE / "peers/huggingface.py", "train", self.folder / f"{model}-hf", self.rows(steps * rows * ranks),
                      output, "--sequence-length", self.options.sequence_length, "--batch", rows, "--steps", steps,
                      "--learning-rate", "3e-4", "--warmup-steps", self.options.warmup_steps,
                      *(["--saves"] if saves else []))
        results = [json.loads((output / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
        memory = "device_memory_bytes" if self.on_gpu else "peak_memory_bytes"
        return {"seconds": sum(results[0]["step_seconds"]), "losses": results[0]["losses"],
                "memory": max(result[memory] for result in results), "model": output}

    def train_ours(self, method, model="model", steps=None, rows=None, saves=False, fixed=()):
        steps, rows = steps or self.options.steps, rows or self.options.rows
        output = self.new_folder()
        log = self.mpirun(self.bin / "finetune", "--checkpoint", self.folder / model, "--data", self.data(), "--output", output,
                          "--cross-documents", *self.shape(steps, rows), *(fixed or self.method(method)),
                          "--checkpoint-every", 1 if saves else 0, "--keep", 1)
        records = [json.loads(line) for line in open(output / "metrics.jsonl")]
        plan = split_taken(log)
        planned = self.planned_memory(model, rows, fixed or self.method(method, plan))
        return {"seconds": sum(record["step_seconds"] for record in records[1:]),
                "losses": [record["loss"] for record in records], "planned": planned, "plan": plan, "model": output,
                "memory": planned if self.on_gpu else records[-1]["peak_memory_bytes"]}

    def planned_memory(self, model, rows, method):
        text = self.mpirun(self.bin / "finetune", "--checkpoint", self.folder / model, *self.shape(1, rows), *method, "--dry-run")
        return total_of(text)

    def shape(self, steps, rows):
        return ["--steps", steps, "--batch-tokens", rows * self.options.ranks * self.options.sequence_length,
                "--sequence-length", self.options.sequence_length, "--warmup-steps", self.options.warmup_steps, *OPTIMIZER,
                *([] if self.on_gpu else ["--threads", self.threads, "--device", "cpu"])]

    def method(self, name, plan=("--shard", "auto")):
        """Options of (b) or (c); of (c) with what an earlier run was planned to be, so that nothing is measured again."""
        if name == "b":
            return ["--precision", "bf16", "--shard", f"dp={self.options.ranks},zero=0"]
        return ["--precision", self.options.precision, *plan]

    def new_folder(self):
        self.runs += 1
        path = self.folder / f"run-{self.runs}"
        path.mkdir()
        return path

    def train(self, name, **how):
        before = processor_seconds()
        result = self.train_default(**how) if name == "a" else self.train_ours(name, **how)
        return {**result, "processor_seconds": processor_seconds() - before}

    # What is compared.

    def base(self, name):
        """What a run takes when its model is next to nothing; the memory of a GPU is counted without."""
        plain = ["--shard", f"dp={self.options.ranks}"]  # --shard auto measures rates with more memory than that model has
        fixed = {} if name == "a" else {"fixed": self.method(name, plain)}
        result = self.train(name, model="nothing", steps=2, rows=1, **fixed)
        return {**result, "memory": 0 if self.on_gpu else result["memory"]}

    def held_out_loss(self, result):
        answer = self.call_json(self.bin / "evaluate", "loss", "--json", "--checkpoint", result["model"], "--data",
                                self.folder / "val.h5", "--cross-documents", "--sequence-length", self.options.sequence_length,
                                "--max-tokens", 8192)
        return answer[0]["loss"]

    def generation(self, name, result):
        lengths = ["--prompt-tokens", 128, "--generated-tokens", 64, "--repetitions", 3]
        if name == "a":
            return self.call_json(sys.executable, HERE / "peers/huggingface.py", "generate", result["model"], *lengths)
        precision = "bf16" if name == "b" else self.options.precision
        return self.call_json(self.bin / "evaluate", "speed", "--json", "--checkpoint", result["model"], "--precision",
                              precision, *lengths)["results"][0]

    def largest_default(self, base, budget):
        """Rows that Trainer takes at once, by trying: doubled until they are too many, then between those and what fitted."""
        def needs(rows):
            memory = self.train_default(steps=2, rows=rows)["memory"] - base
            tell(f"(a) {rows} rows a rank: {memory / GIB:.2f} GiB")
            return memory

        fits, takes, rows = 0, 0, 1
        while (memory := needs(rows)) <= budget:
            fits, takes, rows = rows, memory, 2 * rows
        too_many, too_much = rows, memory
        while too_many - fits > 1:
            guess = fits + math.floor((budget - takes) / (too_much - takes) * (too_many - fits))
            rows = min(max(guess, fits + 1), too_many - 1)
            memory = needs(rows)
            if memory <= budget:
                fits, takes = rows, memory
            else:
                too_many, too_much = rows, memory
        if fits == 0:
            raise SystemExit(f"three_methods: (a) does not train one row in {budget / GIB:g} GiB; give a larger --budget")
        return fits, takes

    def largest_ours(self, name, method, base, budget):
        """What the plan says, and what training at that size takes, a checkpoint's copy included."""
        many = 27720  # has many divisors: the micro batch is one of them
        plan = self.mpirun(self.bin / "finetune", "--checkpoint", self.folder / "model", *self.shape(1, many), *method, "--dry-run",
                           "--micro-batch", "auto", "--memory-limit", budget / GIB)
        rows = int(re.search(r"--micro-batch auto takes (\d+)", plan).group(1))
        memory = self.train_ours(name, steps=2, rows=rows, saves=True, fixed=[*method, "--micro-batch", rows])["memory"] - base
        tell(f"({name}) {rows} rows a rank: {memory / GIB:.2f} GiB")
        return rows, memory


def total_of(text):
    """The total of a plan's memory table, in bytes."""
    number, unit = re.findall(r"^ *total +([\d.]+) (\wi?B)", text, re.MULTILINE)[-1]
    return float(number) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


def split_taken(log):
    """The options that make a run what --shard auto made this one."""
    taken = re.search(r"^ *taken: (\S+);", log, re.MULTILINE)
    if not taken:
        return []
    row = re.search(rf"^ *{re.escape(taken.group(1))} +(\w+) +(\d+) ", log, re.MULTILINE)
    return ["--shard", taken.group(1), "--recompute", row.group(1), "--micro-batch", row.group(2)]


def tell(text):
    print(text, file=sys.stderr, flush=True)


class Table:
    """Columns (a), (b), (c), and (c) over (a) beside its goal."""

    def __init__(self):
        print("| | (a) Trainer | (b) ours, bf16, all-reduce | (c) ours, as planned | (c) / (a) | goal | reached |")
        print("|---|---|---|---|---|---|---|")

    def row(self, what, values, form, at_most=None, at_least=None, ratio=None):
        """The ratio is that of the values unless it was measured otherwise; without a goal it is there to look at."""
        ratio = values["c"] / values["a"] if ratio is None else ratio
        goal = f"<= {at_most}" if at_most is not None else f">= {at_least}" if at_least is not None else ""
        reached = ratio <= at_most if at_most is not None else ratio >= at_least if at_least is not None else None
        cells = " | ".join(form.format(values[name]) for name in "abc")
        print(f"| {what} | {cells} | {ratio:.4g} | {goal} | {'' if reached is None else 'yes' if reached else 'NO'} |", flush=True)


def in_turns(bench):
    """a, b, c, a, b, c..., so that what else the machine does hits all alike."""
    results = {name: [] for name in "abc"}
    for turn in range(bench.options.turns):
        for name, runs in results.items():
            runs.append(bench.train(name))
            plan = " ".join(runs[-1].get("plan", []))
            tell(f"turn {turn + 1}, ({name}): {runs[-1]['seconds']:.1f} s {plan}")
    return results


def compare_losses(last, precision):
    """The losses of each step. That of the first one is of the same weights and rows, or nothing here is comparable."""
    for name in "bc":
        differences = [abs(ours / theirs - 1) for ours, theirs in zip(last[name]["losses"], last["a"]["losses"], strict=True)]
        print(f"training loss of ({name}) beside (a): {100 * differences[0]:.4f} % apart in the first step, at most "
              f"{100 * max(differences):.3f} % in any")
        most = 1e-5 if name == "c" and precision == "fp32" else 5e-4
        if differences[0] > most:
            raise SystemExit(f"three_methods: in the first step that is more than {100 * most:g} %: these are not the same "
                             "weights and rows")


def three_methods(bench):
    options = bench.options
    bases = {name: bench.base(name) for name in "abc"}
    base = {name: run["memory"] for name, run in bases.items()}
    results = in_turns(bench)
    last = {name: runs[-1] for name, runs in results.items()}
    tokens = (options.steps - 1) * options.rows * options.ranks * options.sequence_length
    print(f"{options.model}, {options.ranks} ranks" + ("" if bench.on_gpu else f" of {bench.threads} thread(s)") +
          f", {options.rows} rows of {options.sequence_length} tokens a rank and step, {options.steps} steps; (c) in "
          f"{options.precision}, by turns: {'; '.join(' '.join(run['plan']) for run in results['c'])}")
    compare_losses(last, options.precision)
    table = Table()
    seconds = {name: statistics.median(run["seconds"] for run in runs) for name, runs in results.items()}
    ratio = statistics.median(c["seconds"] / a["seconds"] for a, c in zip(results["a"], results["c"]))
    table.row(f"seconds for {tokens} tokens", seconds, "{:.1f}", at_most=0.67, ratio=ratio)
    if not (bench.on_gpu or options.subnet):  # what runs on the hosts is nobody's child
        work = {name: statistics.median(run["processor_seconds"] for run in runs) - bases[name]["processor_seconds"]
                for name, runs in results.items()}
        table.row("processor seconds of all ranks and steps", work, "{:.0f}")
    memory = {name: (max(run["memory"] for run in runs) - base[name]) / GIB for name, runs in results.items()}
    table.row("memory a rank while it trains, GiB", memory, "{:.2f}", at_most=0.6)
    if not bench.on_gpu:
        table.row("of the whole process", {name: memory[name] + base[name] / GIB for name in "abc"}, "{:.2f}")
        fixed = {name: bench.method(name, last[name]["plan"]) for name in "bc"}
        saving = {name: (bench.train(name, steps=2, saves=True, **({"fixed": fixed[name]} if name in fixed else {}))["memory"] -
                         base[name]) / GIB for name in "abc"}
        table.row("memory a rank while it saves too, GiB", saving, "{:.2f}")
    print(f"| planned by us, GiB | | {last['b']['planned'] / GIB:.2f} | {last['c']['planned'] / GIB:.2f} | | | |")
    loss = {name: bench.held_out_loss(last[name]) for name in "abc"}
    table.row("loss on held-out text", loss, "{:.4f}", at_most=1.005)
    speed = {name: bench.generation(name, last[name]) for name in "abc"}
    table.row("generation, tokens/s", {name: speed[name]["decode_tokens_per_second"] for name in "abc"}, "{:.1f}")
    table.row("first token behind 128, ms", {name: 1e3 * speed[name]["first_token_seconds"] for name in "abc"}, "{:.0f}")
    largest(bench, table, base, last["c"]["plan"])


def largest(bench, table, base, plan, goal=None):
    """In rows a rank. (c) keeps the split that it was planned, but not the micro batch."""
    budget = bench.options.budget * GIB
    split = plan[:plan.index("--micro-batch")]
    found = {"a": bench.largest_default(base["a"], budget),
             **{name: bench.largest_ours(name, bench.method(name, split), base[name], budget) for name in "cb"}}
    table.row(f"largest micro batch in {bench.options.budget:g} GiB a rank, rows",
              {name: rows for name, (rows, _) in found.items()}, "{}", at_least=goal)
    table.row("memory of that, GiB", {name: memory / GIB for name, (_, memory) in found.items()}, "{:.2f}")


def arena_against_allocator(bench):
    """One rank in fp32: nothing but where tensors lie, and which ones are kept."""
    bench.options.precision = "fp32"
    base = {name: bench.base(name)["memory"] for name in "abc"}
    print(f"{bench.options.model}, 1 rank, rows of {bench.options.sequence_length} tokens; (c) in fp32")
    largest(bench, Table(), base, ["--shard", "dp=1", "--micro-batch", "1"], goal=1.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="a folder with our bin and tests")
    parser.add_argument("--model", help="one of data/models; llama-39m, with --largest gpt2-124m")
    parser.add_argument("--text", help="text or JSON lines to learn from; made up otherwise")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4, help="of a rank and step")
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup-steps", type=int, default=4)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="of (c); bf16 on GPUs, fp32 on processors")
    parser.add_argument("--budget", type=float, help="GiB a rank for the largest micro batch; 2, with --largest 8")
    parser.add_argument("--largest", action="store_true", help="only the largest micro batch, on one rank")
    parser.add_argument("--subnet", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.precision = options.precision or ("bf16" if pathlib.Path(options.build).name == "cuda" else "fp32")
    options.model = options.model or ("gpt2-124m" if options.largest else "llama-39m")
    options.budget = options.budget or (8 if options.largest else 2)
    if options.largest:
        options.ranks = 1
    if options.subnet and options.ranks % 2:
        parser.error("--link needs an even number of --ranks, half of them on each host")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        bench.prepare()
        (arena_against_allocator if options.largest else three_methods)(bench)


if __name__ == "__main__":
    main()
