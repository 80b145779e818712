#!/usr/bin/env python3
"""tinyshakespeare on four and eight ranks against one: the validation loss must be within what seeds change.

Trains configs/shakespeare_char.yaml for 500 steps on one rank, on parallel.data=2 x parallel.tensor=2, and on two stages
of these (threads of one process), with the same weights, batches and order for each seed, and prints the loss over the
whole validation set. Fails where a run on several ranks lies outside one rank's losses over seeds. With several recipes
each is held to its own.
"""

import argparse
import pathlib
import statistics
import subprocess

import paired_runs
import shakespeare_fp8

FOUR = ["parallel.data=2", "parallel.tensor=2"]
RANKS = {"one rank": [], "dp 2 x tp 2": FOUR, "pp 2 x dp 2 x tp 2": [*FOUR, "parallel.pipeline=2", "train.micro_batch=3"]}


def last_loss(args, prefix, recipe, ranks, seed):
    folder = args.out / f"{recipe}-{'-'.join(ranks.split())}-{seed}"
    if args.steps not in paired_runs.read_log(folder)[0]:
        settings = [f"precision.recipe={recipe}", f"train.seed={seed}", f"train.steps={args.steps}", f"out={folder}"]
        settings += [f"data.train={prefix}_train", f"data.validation={prefix}_val", "train.device=cpu", "resume=never"]
        settings += ["train.micro_batch=6", "train.global_batch=12", f"eval.interval={args.steps}", "checkpoint.interval=0"]
        config = paired_runs.ROOT / "configs" / "shakespeare_char.yaml"
        command = [args.octet, "train", config] + settings + RANKS[ranks]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return paired_runs.read_log(folder)[0][args.steps]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="tinyshakespeare's input.txt")
    parser.add_argument("--octet", default=paired_runs.ROOT / "build" / "tools" / "octet", help="the program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/shakespeare_ranks"))
    parser.add_argument("--recipes", nargs="+", default=["fp32", "fp8-current"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1337, 1338, 1339, 1340])
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    args.octet = str(pathlib.Path(args.octet).resolve())
    args.out = args.out.resolve()
    prefix = shakespeare_fp8.prepare(args)
    outside = []
    for recipe in args.recipes:
        one = None
        for ranks in RANKS:
            losses = [last_loss(args, prefix, recipe, ranks, seed) for seed in args.seeds]
            one = one or losses
            spread, gaps = max(one) - min(one), [y - x for x, y in zip(one, losses)]
            print(f"| {recipe} | {ranks} | {' | '.join(f'{loss:.4f}' for loss in losses)} | {statistics.mean(losses):.4f} |")
            print(f"{recipe}: spread over seeds {spread:.4f}, gaps {', '.join(f'{gap:+.1e}' for gap in gaps)}", flush=True)
            outside += [f"{recipe}, {ranks}: a gap of {gap:+.4f} is more than the spread {spread:.4f}" for gap in gaps if abs(gap) > spread]
    raise SystemExit("\n".join(outside) or None)


if __name__ == "__main__":
    main()
