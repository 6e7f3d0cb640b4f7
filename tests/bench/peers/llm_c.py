#!/usr/bin/env python3
"""Trains GPT-2 124M with llm.c on random weights and tokens; prints one JSON line with tokens_per_second of each step.

  llm_c.py --source FOLDER --batch ROWS --sequence-length TOKENS [--steps N] [--threads N]

FOLDER is a checkout of llm.c, which is not touched: the CPU trainer is copied, its batch set, and compiled by the flags
of its own Makefile. It is stopped after the steps.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile

import numpy

LAYERS, HEADS, WIDTH, POSITIONS, VOCABULARY, PADDED = 12, 12, 768, 1024, 50257, 50304


def parameter_count():
    layer = 12 * WIDTH * WIDTH + 13 * WIDTH  # qkv, projection, two of the MLP, biases, two norms
    return PADDED * WIDTH + POSITIONS * WIDTH + LAYERS * layer + 2 * WIDTH


def write_model(path):
    header = numpy.zeros(256, numpy.int32)
    header[:8] = [20240326, 3, POSITIONS, VOCABULARY, LAYERS, HEADS, WIDTH, PADDED]
    values = numpy.random.default_rng(0).standard_normal(parameter_count(), numpy.float32) * numpy.float32(0.02)
    path.write_bytes(header.tobytes() + values.tobytes())


def write_tokens(path, count):
    header = numpy.zeros(256, numpy.int32)
    header[:3] = [20240520, 1, count]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.tobytes() + numpy.random.default_rng(1).integers(0, VOCABULARY, count, numpy.uint16).tobytes())


def build(source, folder, batch, length):
    subprocess.run(["cp", "-r", source / "train_gpt2.c", source / "llmc", source / "Makefile", folder], check=True)
    main = folder / "train_gpt2.c"
    text, rows = re.subn(r"int B = \d+;", f"int B = {batch};", main.read_text())
    text, columns = re.subn(r"int T = \d+;", f"int T = {length};", text)
    assert rows == columns == 1, "train_gpt2.c sets its batch in another way"
    main.write_text(text)
    subprocess.run(["make", "-C", folder, "train_gpt2", "NO_MULTI_GPU=1", "NO_USE_MPI=1"], check=True,
                   capture_output=True)
    return folder / "train_gpt2"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--sequence-length", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = build(options.source, folder, options.batch, options.sequence_length)
        write_model(folder / "gpt2_124M.bin")
        for part in ("train", "val"):
            write_tokens(folder / f"dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin",
                         20 * options.batch * options.sequence_length + 1)
        environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
        process = subprocess.Popen(["stdbuf", "-oL", program], cwd=folder, env=environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        speeds, log = [], ""
        for line in process.stdout:
            log += line
            took = re.match(r"step \d+:.*took ([\d.]+) ms", line)
            if took:
                speeds.append(options.batch * options.sequence_length / (float(took.group(1)) / 1000))
            if len(speeds) == options.steps:
                break
        process.kill()
        process.wait()
    if len(speeds) < options.steps:
        raise SystemExit(f"llm.c ended early:\n{log[-2000:]}")
    print(json.dumps({"tokens_per_second": speeds}))


if __name__ == "__main__":
    main()
