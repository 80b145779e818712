#!/usr/bin/env python3
"""FP8 against bf16 on tinyshakespeare: nanoGPT's published settings, all recipes, paired data order.

Trains configs/shakespeare_char.yaml (the CPU setting; --config: another) once per recipe and seed, reads each log.jsonl
and prints the best validation loss of the full-set evaluations per run, the means, the gap of each recipe to bf16's
mean and bf16's spread over seeds.
"""

import argparse
import pathlib
import subprocess

import paired_runs

LOW = ["bf16", "fp8-current", "fp8-delayed", "fp8-block"]


def prepare(args):
    data = args.out / "data"
    if not (data / "shakespeare_val.bin").exists():
        data.mkdir(parents=True, exist_ok=True)
        subprocess.run([args.octet, "tokenizer", "train", "--kind", "char", "--out", data / "char", args.text], check=True)
        subprocess.run(
            [args.octet, "data", "--tokenizer", data / "char", "--split", "0.9,0.1", "--split-by", "tokens"]
            + ["--out", data / "shakespeare", args.text],
            check=True,
        )
    return data / "shakespeare"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="tinyshakespeare's input.txt")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/shakespeare_fp8"))
    parser.add_argument("--recipes", nargs="+", default=["fp32"] + LOW)
    parser.add_argument("--steps", type=int, default=2000, help="5000 for the GPU setting")
    parser.add_argument("--config", type=pathlib.Path, default=paired_runs.ROOT / "configs" / "shakespeare_char.yaml")
    paired_runs.add_arguments(parser)
    args = parser.parse_args()
    args.octet = str(pathlib.Path(args.octet).resolve())
    args.out = args.out.resolve()
    prefix = prepare(args)
    # fp32 has one seed: it is compared with a published figure
    wanted = [(recipe, seed) for seed in args.seeds for recipe in args.recipes if recipe != "fp32" or seed == args.seeds[0]]
    paired_runs.run_all(args, prefix, wanted)


if __name__ == "__main__":
    main()
