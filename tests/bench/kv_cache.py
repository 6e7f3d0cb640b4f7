#!/usr/bin/env python3
"""What a cache of keys and values in 8 bits costs a real model; prints a table.

  kv_cache.py --bin FOLDER --checkpoint RUN --text TEXT [--bytes 24000] [--weights none int8 int4] [--threads N]

FOLDER holds our executables. The first bytes of TEXT, English prose, are cut into items of about 1600 bytes at blanks:
a context of a quarter, and the rest, whose log likelihood `evaluate tasks` measures with each cache. The perplexity is
that of the continuations' tokens; an item's change is told for a token of an item of mean length.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import tempfile

ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
ITEM_BYTES = 1600


def run(*command):
    done = subprocess.run([str(word) for word in command], env=ENVIRONMENT, text=True, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def cut(text):
    """Pairs of a context and what follows it, which begin with whole words."""
    words, pieces = text.split(), [[]]
    for word in words:
        if sum(map(len, pieces[-1])) + len(pieces[-1]) > ITEM_BYTES:
            pieces.append([])
        pieces[-1].append(word)
    return [(" ".join(piece[:len(piece) // 4]), " ".join(piece[len(piece) // 4:])) for piece in pieces[:-1]]


def count_tokens(options, folder, texts):
    """Tokens of texts that follow a blank, without those that begin and end documents."""
    def held(name, documents):
        lines, dataset = folder / f"{name}.jsonl", folder / f"{name}.h5"
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        run(f"{options.bin}/tokenize", "encode", "--tokenizer", options.checkpoint, "--input", lines,
            "--output", dataset)
        return json.loads(run(f"{options.bin}/tokenize", "inspect", "--json", "--input", dataset))["tokens"]

    around = held("letter", ["a"]) - 1
    return held("texts", [" " + text for text in texts]) - len(texts) * around


def log_likelihoods(options, folder, task, weights, cache):
    log = folder / f"{weights}-{cache}.jsonl"
    run(f"{options.bin}/evaluate", "tasks", "--checkpoint", options.checkpoint, "--task", task, "--log", log,
        "--quantize", weights, "--kv-cache", cache, "--batch", 2, "--threads", options.threads)
    return [json.loads(line)["resps"][0][0] for line in log.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--bytes", type=int, default=24000)
    parser.add_argument("--weights", nargs="+", default=["none", "int8", "int4"])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    text = pathlib.Path(options.text).read_bytes()[:options.bytes].decode(errors="ignore")
    pairs = cut(text)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        task = folder / "task.json"
        task.write_text(json.dumps({"task": "prose", "kind": "cloze", "prompt": "{question}",
                                    "items": [{"question": context, "answer": rest} for context, rest in pairs]}))
        tokens = count_tokens(options, folder, [rest for _, rest in pairs])
        print(f"{len(pairs)} items, {tokens} tokens")
        print(f"{'weights':8} {'cache':6} {'perplexity':>10} {'against float':>14} "
              f"{'largest of an item, nats a token':>34}")
        for weights in options.weights:
            plain = log_likelihoods(options, folder, task, weights, "none")
            coded = log_likelihoods(options, folder, task, weights, "int8")
            largest = max(abs(one - other) / (tokens / len(pairs)) for one, other in zip(plain, coded, strict=True))
            for cache, values in (("float", plain), ("int8", coded)):
                against = math.exp((sum(plain) - sum(values)) / tokens) - 1
                print(f"{weights:8} {cache:6} {math.exp(-sum(values) / tokens):10.4f} {against:14.4%} "
                      f"{largest if cache == 'int8' else 0:34.5f}")


if __name__ == "__main__":
    main()
