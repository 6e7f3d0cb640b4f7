"""Starts the real executables, alone or under mpirun, on a small corpus made here; for the *_test.py beside it."""

import atexit
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

BUILD = pathlib.Path(os.environ["TANDEM_BUILD_DIR"])
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="tandem-runs-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
(FOLDER / "mpi").mkdir()
ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_orte_base_help_aggregate": "0",
    # Other network interfaces of the machine may come and go.
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMP_NUM_THREADS": "1",
    # What Open MPI leaves behind when it is killed.
    "TMPDIR": str(FOLDER / "mpi"),
    "OMPI_MCA_btl_vader_backing_directory": str(FOLDER / "mpi"),
}
VOCABULARY = 320
SEQUENCE = 32
ROWS = 12  # divides by 1, 2, 3 and 4 ranks

MODEL = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


class Ended:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Process:
    """A program under way, whose ranks can be signalled and killed one by one."""

    def __init__(self, ranks, program, *arguments, prefix=(), environment=None):
        command = [*prefix, str(BUILD / "bin" / program), *map(str, arguments)]
        if ranks > 1:
            command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *command]
        self.program, self.ranks, self.command = program, ranks, command
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        env={**ENVIRONMENT, **(environment or {})}, start_new_session=True)

    def descendants(self):
        children = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(after_name[1]), []).append(int(entry.name))
        found, open_ = [], [self.process.pid]
        while open_:
            found.append(open_.pop())
            open_ += children.get(found[-1], [])
        return found

    def rank_processes(self):
        """The process ids of the ranks that have started."""
        ranks = []
        for pid in self.descendants():
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == self.program[:15]:
                    ranks.append(pid)
        return sorted(ranks)

    def send(self, signal_number):
        """To mpirun, which passes it on, or to the lone process."""
        self.process.send_signal(signal_number)

    def kill_all(self):
        """SIGKILL for every rank and mpirun itself, in any order: as when a node loses power."""
        pids = self.descendants()
        random.shuffle(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self.wait()

    def wait(self, seconds=120):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            for pid in self.descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"{' '.join(self.command)}\nhangs for {seconds} s\n{self.text()}") from None
        return Ended(code, *self.text())

    def text(self):
        texts = []
        for file in (self.out, self.err):
            with file:
                file.seek(0)
                texts.append(file.read())
        return texts


def run(ranks, program, *arguments, seconds=120, **options):
    return Process(ranks, program, *arguments, **options).wait(seconds)


def succeed(ranks, program, *arguments, **options):
    ended = run(ranks, program, *arguments, **options)
    assert ended.code == 0, f"{program} {' '.join(map(str, arguments))}\n{ended}"
    return ended


def wait_until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.002)


def story(random_numbers, sentences):
    who = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus"]
    does = ["sees", "likes", "finds", "paints", "mends", "sells"]
    what = ["a red boat", "the old house", "a small bird", "the green door", "some bread", "a long rope"]
    pick = random_numbers.choice
    return " ".join(f"{pick(who)} {pick(does)} {pick(what)}." for _ in range(sentences))


class World:
    """A corpus, a tokenizer, datasets and a model file in a folder of their own."""

    def __init__(self):
        self.folder = FOLDER
        self.model = self.write_model("model.json")
        self.tokenizer = self.make_tokenizer("tokenizer.json", seed=1, vocabulary=VOCABULARY)
        self.train, self.val = self.encode(self.tokenizer, "", seed=1)

    def path(self, name):
        return self.folder / name

    def write_model(self, name, **changes):
        path = self.path(name)
        path.write_text(json.dumps({**MODEL, **changes}))
        return path

    def write_corpus(self, name, seed, documents=300):
        random_numbers = random.Random(seed)
        path = self.path(name)
        path.write_text("".join(json.dumps({"text": story(random_numbers, random_numbers.randint(1, 12))}) + "\n"
                                for _ in range(documents)))
        return path

    def make_tokenizer(self, name, seed, vocabulary):
        succeed(1, "tokenize", "train", "--input", self.write_corpus(f"{name}.jsonl", seed), "--vocab-size", vocabulary,
                "--pattern", "gpt2", "--special", "<|endoftext|>", "--output", self.path(name))
        return self.path(name)

    def encode(self, tokenizer, prefix, seed):
        train, val = self.path(f"{prefix}train.h5"), self.path(f"{prefix}val.h5")
        succeed(1, "tokenize", "encode", "--tokenizer", tokenizer, "--input",
                self.write_corpus(f"{prefix}corpus.jsonl", seed), "--output", train, "--val-fraction", 0.1,
                "--val-output", val)
        return train, val

    def arguments(self, output, steps, **changes):
        """pretrain's arguments; `checkpoint_every=5` becomes --checkpoint-every 5, None leaves an option out."""
        options = {"model": self.model, "data": self.train, "output": output, "steps": steps,
                   "batch_tokens": ROWS * SEQUENCE, "sequence_length": SEQUENCE, "learning_rate": 3e-3,
                   "warmup_steps": 2, "threads": 1, **changes}
        arguments = []
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                arguments.append(flag)
            elif value is not None:
                arguments += [flag, value]
        return arguments

    def pretrain(self, output, steps, ranks=1, **changes):
        return succeed(ranks, "pretrain", *self.arguments(self.path(output), steps, **changes))

    def start_pretrain(self, output, steps, ranks=1, **changes):
        return Process(ranks, "pretrain", *self.arguments(self.path(output), steps, **changes))

    def try_pretrain(self, output, steps, ranks=1, seconds=60, process=None, **changes):
        return run(ranks, "pretrain", *self.arguments(self.path(output), steps, **changes), seconds=seconds,
                   **(process or {}))

    def evaluate(self, command, *arguments, ranks=1):
        return json.loads(succeed(ranks, "evaluate", command, "--json", "--threads", 1, *arguments).out)

    def metrics(self, output):
        return [json.loads(line) for line in (self.path(output) / "metrics.jsonl").read_text().splitlines()]

    def step_lines(self, output):
        return [line for line in self.metrics(output) if "evaluation" not in line]

    def losses(self, output):
        return [line["loss"] for line in self.step_lines(output)]

    def checkpoints(self, output):
        return sorted(p.name for p in (self.path(output) / "checkpoints").glob("step-*"))

    def newest_step(self, output):
        complete = [name for name in self.checkpoints(output) if name[5:].isdigit()]
        return int(complete[-1][5:]) if complete else 0

    def tensors(self, checkpoint):
        """A checksum of every tensor of a run's newest checkpoint, by name."""
        path = self.path(checkpoint)
        ended = subprocess.run([BUILD / "tests" / "checkpoint_checksums", path], capture_output=True, text=True,
                               env=ENVIRONMENT, check=False)
        assert ended.returncode == 0, ended.stderr
        return dict(reversed(line.split(" ", 1)) for line in ended.stdout.splitlines())
