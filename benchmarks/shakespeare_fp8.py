#!/usr/bin/env python3
"""FP8 against bf16 on tinyshakespeare: nanoGPT's published settings, all recipes, paired data order.

Trains configs/shakespeare_char.yaml (the CPU setting; --config: another) once per recipe and seed, one run after the other (runs that are complete in OUT
are not repeated), reads each log.jsonl and prints the best validation loss of the full-set evaluations per run, the
means, the gap of each recipe to bf16's mean and bf16's spread over seeds. train.seed sets weights and data order: the
runs of one seed see the same batches in the same order from the same weights, whatever the recipe.
"""

import argparse
import concurrent.futures
import json
import pathlib
import shlex
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOW = ["bf16", "fp8-current", "fp8-delayed", "fp8-block"]


def prepare(args, octet):
    data = args.out / "data"
    if not (data / "shakespeare_val.bin").exists():
        data.mkdir(parents=True, exist_ok=True)
        subprocess.run([octet, "tokenizer", "train", "--kind", "char", "--out", data / "char", args.text], check=True)
        subprocess.run(
            [octet, "data", "--tokenizer", data / "char", "--split", "0.9,0.1", "--split-by", "tokens"]
            + ["--out", data / "shakespeare", args.text],
            check=True,
        )
    return data


def read_log(folder):
    log = folder / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    evaluations = {line["step"]: line for line in lines if line.get("kind") == "eval"}
    steps = [line for line in lines if line.get("kind") == "step"]
    return evaluations, steps


def train(args, octet, data, recipe, seed):
    folder = args.out / f"{recipe}-{seed}"
    evaluations, _ = read_log(folder)
    if args.steps not in evaluations:
        command = [octet, "train", args.config]
        command += [f"precision.recipe={recipe}", f"train.seed={seed}", f"train.steps={args.steps}", f"out={folder}"]
        command += [f"data.train={data}/shakespeare_train", f"data.validation={data}/shakespeare_val"]
        command += ["checkpoint.interval=0", "resume=never"] + args.set
        started = time.monotonic()
        subprocess.run(shlex.split(args.prefix) + command, check=True, stdout=subprocess.DEVNULL)
        print(f"{recipe} seed {seed}: {time.monotonic() - started:.0f} s", flush=True)
    evaluations, steps = read_log(folder)
    best = min(evaluations.values(), key=lambda line: line["loss"])
    speeds = [line["tokens_per_second"] for line in steps]
    return {
        "recipe": recipe,
        "seed": seed,
        "best": best["loss"],
        "best_step": best["step"],
        "last": evaluations[max(evaluations)]["loss"],
        "tokens": best["tokens"],
        "tokens_per_second": statistics.median(speeds) if speeds else 0.0,
    }


def table(runs):
    lines = ["| recipe | seed | best validation loss | at step | last | tokens/s |", "|---|---|---|---|---|---|"]
    for r in runs:
        lines.append(
            f"| {r['recipe']} | {r['seed']} | {r['best']:.4f} | {r['best_step']} | {r['last']:.4f} "
            f"| {r['tokens_per_second']:.0f} |"
        )
    by_recipe = {}
    for r in runs:
        by_recipe.setdefault(r["recipe"], {})[r["seed"]] = r["best"]
    base = by_recipe.get("bf16", {})
    lines += ["", "| recipe | seeds | mean | gap to bf16's mean | paired gaps |", "|---|---|---|---|---|"]
    for recipe, losses in by_recipe.items():
        mean = statistics.mean(losses.values())
        gap, paired = "", ""
        if base and recipe != "bf16":
            gap = f"{100 * (mean / statistics.mean(base.values()) - 1):+.2f} %"
            paired = ", ".join(f"{100 * (v / base[s] - 1):+.2f} %" for s, v in losses.items() if s in base)
        lines.append(f"| {recipe} | {len(losses)} | {mean:.4f} | {gap} | {paired} |")
    if len(base) > 1:
        low, high = min(base.values()), max(base.values())
        lines += [
            "",
            f"bf16 over seeds: {low:.4f} .. {high:.4f} (spread {100 * (high - low) / statistics.mean(base.values()):.2f} "
            f"%, standard deviation {statistics.stdev(base.values()):.4f})",
        ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="tinyshakespeare's input.txt")
    parser.add_argument("--octet", default=ROOT / "build" / "tools" / "octet", help="the program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/shakespeare_fp8"))
    parser.add_argument("--recipes", nargs="+", default=["fp32"] + LOW)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1337, 1338, 1339])
    parser.add_argument("--steps", type=int, default=2000, help="5000 for the GPU setting")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "shakespeare_char.yaml")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (on a GPU that one run does not fill)")
    parser.add_argument("--prefix", default="", help="command before each run, such as taskset -c 0,1")
    parser.add_argument("--set", nargs="*", default=[], help="further key=value settings of octet train")
    args = parser.parse_args()
    octet = str(pathlib.Path(args.octet).resolve())
    args.out = args.out.resolve()
    data = prepare(args, octet)
    # fp32 has one seed: the bound it is held to is a published figure
    wanted = [(recipe, seed) for seed in args.seeds for recipe in args.recipes if recipe != "fp32" or seed == args.seeds[0]]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = list(pool.map(lambda run: train(args, octet, data, *run), wanted))
    runs.sort(key=lambda r: (args.recipes.index(r["recipe"]), r["seed"]))
    (args.out / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
