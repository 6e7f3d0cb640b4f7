#!/usr/bin/env python3
"""Prompts and answers with quantised weights beside llama.cpp, in turns; prints a table.

  decode.py --bin FOLDER --checkpoint RUN --python PYTHON --gguf FILE [--format int4|int8] [--turns N] [--threads N]

FOLDER holds our executables; RUN is a model of the shape of FILE (checkpoint-convert import makes it of FILE itself);
PYTHON has llama-cpp-python. Counted are processor seconds, of all threads together, which another process on the machine
disturbs less than it does the clock. What loading and quantising take is measured by an answer of one token, and taken off.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
PROMPT = "The rain had stopped, and she went down to the river. " * 40
ANSWER_TOKENS = 64


def run(command):
    """Output and processor seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in command], env=ENVIRONMENT, text=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(options):
    def generate(prompt, tokens):
        output, seconds = run([pathlib.Path(options.bin).resolve() / "evaluate", "generate", "--checkpoint", options.checkpoint,
                               "--prompt", prompt, "--max-tokens", tokens, "--context", 1024, "--temperature", 0,
                               "--ignore-end", "--quantize", options.format, "--threads", options.threads, "--json"])
        return json.loads(output)[0]["prompt_tokens"], seconds

    few, loading = generate("The", 1)
    count, prompt = generate(PROMPT, 1)
    _, answer = generate(PROMPT, 1 + ANSWER_TOKENS)
    return {"tokens": count, "prompt": (prompt - loading) / (count - few), "answer": (answer - prompt) / ANSWER_TOKENS}


def theirs(options, tokens):
    output, _ = run([options.python, HERE / "peers/llama_cpp_decode.py", "--gguf", options.gguf, "--prompt-tokens",
                     tokens, "--answer-tokens", ANSWER_TOKENS, "--threads", options.threads])
    return json.loads(output.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("bin", "checkpoint", "python", "gguf"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--format", choices=["int4", "int8"], default="int4")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each")
    options = parser.parse_args()
    own, other = [], []
    for _ in range(options.turns):
        own.append(ours(options))
        other.append(theirs(options, own[-1]["tokens"]))
    print(f"| work, threads: {options.threads} | ours, tokens a processor second | llama.cpp | ratio | goal |\n|---|---|---|---|---|")
    for part, goal in (("prompt", 2.5), ("answer", 1.5)):
        a, b = (1 / statistics.median(turn[part] for turn in turns) for turns in (own, other))
        print(f"| {part}, after {own[0]['tokens'] if part == 'answer' else 0} tokens | {a:.1f} | {b:.1f} | {a / b:.2f} | >= {goal} |")


if __name__ == "__main__":
    main()
