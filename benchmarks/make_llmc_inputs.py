#!/usr/bin/env python3
"""Makes random inputs for llm.c's CPU program, so that its speed can be measured without downloads.

Writes the inputs of its train_gpt2 into DIR: gpt2_124M.bin (version 3: a 256-int header, then float32 parameters, all
layers of one kind together) and the two tiny_shakespeare token files (a 256-int header, then uint16 tokens). Weights
have GPT-2's initialisation, tokens are uniform: speed is that of real data, losses are meaningless. llmc_gpu_step.py
uses these tokens; the GPU program initialises its own weights.
"""

import argparse
import pathlib

import numpy

MODEL_MAGIC, MODEL_VERSION = 20240326, 3
TOKENS_MAGIC, TOKENS_VERSION = 20240520, 1
VOCAB, PADDED_VOCAB, POSITIONS, LAYERS, HEADS, WIDTH = 50257, 50304, 1024, 12, 12, 768


def header(*values):
    ints = numpy.zeros(256, dtype=numpy.int32)
    ints[: len(values)] = values
    return ints


def write_model(path, rng):
    C, L = WIDTH, LAYERS
    # (size, kind) in file order: embeddings, then per kind all layers, then the last norm.
    tensors = [(PADDED_VOCAB * C, "normal"), (POSITIONS * C, "normal")]
    tensors += [(L * C, "one"), (L * C, "zero")]  # norm 1
    tensors += [(L * 3 * C * C, "normal"), (L * 3 * C, "zero")]  # qkv
    tensors += [(L * C * C, "normal"), (L * C, "zero")]  # attention projection
    tensors += [(L * C, "one"), (L * C, "zero")]  # norm 2
    tensors += [(L * 4 * C * C, "normal"), (L * 4 * C, "zero")]  # up
    tensors += [(L * C * 4 * C, "normal"), (L * C, "zero")]  # down
    tensors += [(C, "one"), (C, "zero")]  # last norm
    with open(path, "wb") as file:
        header(MODEL_MAGIC, MODEL_VERSION, POSITIONS, VOCAB, L, HEADS, C, PADDED_VOCAB).tofile(file)
        for size, kind in tensors:
            if kind == "normal":
                (rng.standard_normal(size, dtype=numpy.float32) * numpy.float32(0.02)).tofile(file)
            else:
                numpy.full(size, 1 if kind == "one" else 0, dtype=numpy.float32).tofile(file)


def write_tokens(path, rng, count):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        header(TOKENS_MAGIC, TOKENS_VERSION, count).tofile(file)
        rng.integers(0, VOCAB, count, dtype=numpy.uint16).tofile(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="the folder train_gpt2 will be started in")
    parser.add_argument("--tokens", type=int, default=200_000)
    args = parser.parse_args()
    rng = numpy.random.default_rng(1337)
    args.folder.mkdir(parents=True, exist_ok=True)
    write_model(args.folder / "gpt2_124M.bin", rng)
    data = args.folder / "dev" / "data" / "tinyshakespeare"
    write_tokens(data / "tiny_shakespeare_train.bin", rng, args.tokens)
    write_tokens(data / "tiny_shakespeare_val.bin", rng, args.tokens // 4)


if __name__ == "__main__":
    main()
