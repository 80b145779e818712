#!/usr/bin/env python3
"""Exact losses of short runs with every recipe in one text file, to compare two builds with `diff`.

Trains configs/shakespeare_char.yaml for some steps under each recipe, one run after another, and writes a line per step:
recipe, step, loss and norm of the gradient as hexadecimal floats, so that all bits are compared; and the loss over
the validation set at the end. Needs only the text and the program; runs on a GPU if there is one, with deterministic
kernels. Bits depend on the machine and on OMP_NUM_THREADS: compare two builds on one machine.
"""

import argparse
import pathlib
import shutil
import subprocess

import paired_runs
from shakespeare_fp8 import prepare

RECIPES = ["fp32", "tf32", "bf16", "fp8-delayed", "fp8-current", "fp8-block", "auto"]


def losses(args, prefix, recipe):
    folder = args.out / recipe
    command = [args.octet, "train", args.config, f"precision.recipe={recipe}", f"train.steps={args.steps}"]
    command += [f"data.train={prefix}_train", f"data.validation={prefix}_val", f"out={folder}", "log.interval=1"]
    command += ["eval.interval=0", "checkpoint.interval=0", "resume=never", "train.deterministic=true"] + args.set
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    evaluations, steps = paired_runs.read_log(folder)
    if len(steps) != args.steps:
        raise SystemExit(f"{folder}/log.jsonl has {len(steps)} steps, {args.steps} were trained")
    lines = [f"{recipe} {s['step']} {float(s['loss']).hex()} {float(s['grad_norm']).hex()}" for s in steps]
    return lines + [f"{recipe} eval {float(evaluations[args.steps]['loss']).hex()}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="tinyshakespeare's input.txt")
    parser.add_argument("--octet", default=paired_runs.ROOT / "build" / "tools" / "octet", help="the program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/loss_oracle"), help="runs and losses.txt")
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--config", type=pathlib.Path, default=paired_runs.ROOT / "configs" / "shakespeare_char.yaml")
    parser.add_argument("--set", nargs="*", default=[], help="further key=value settings of octet train")
    args = parser.parse_args()
    args.octet = str(pathlib.Path(args.octet).resolve())
    args.out = args.out.resolve()
    prefix = prepare(args)
    lines = []
    for recipe in args.recipes:
        lines += losses(args, prefix, recipe)
        print(f"{recipe}: {lines[-1].split()[-1]} after {args.steps} steps", flush=True)
    (args.out / "losses.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
