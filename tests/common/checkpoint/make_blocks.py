"""Makes blocks.h5: blocks of GGUF with what its own Python package reads in them, and what that writes.

Not part of the build; run it again by hand to add a type:

    python3 -m venv venv && venv/bin/pip install gguf h5py numpy
    venv/bin/python tests/common/checkpoint/make_blocks.py
"""

import pathlib

import gguf
import h5py
import numpy

BLOCKS = 6
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}

random = numpy.random.default_rng(11)
with h5py.File(pathlib.Path(__file__).with_name("blocks.h5"), "w") as file:
    for name, offsets in SCALES.items():
        kind = getattr(gguf.GGMLQuantizationType, name)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (BLOCKS, size), dtype=numpy.uint8)
        for offset in offsets:  # any bytes are codes, but a scale must be a finite float16
            blocks[:, offset:offset + 2] = random.normal(size=BLOCKS).astype(numpy.float16).view(numpy.uint8).reshape(-1, 2)
        file[f"{name}/blocks"] = blocks.reshape(-1)
        file[f"{name}/values"] = gguf.quants.dequantize(blocks, kind).reshape(-1).astype(numpy.float32)
    values = random.normal(size=(BLOCKS, 32)).astype(numpy.float32)
    values[0] = 0
    values[1, 5], values[1, 9] = -4, 4  # a tie of the furthest
    file["written/values"] = values.reshape(-1)
    for name in ("Q8_0", "Q4_0"):
        kind = getattr(gguf.GGMLQuantizationType, name)
        file[f"written/{name}"] = gguf.quants.quantize(values, kind).reshape(-1)
