"""Runs one configuration with several recipes and seeds in paired data order, and prints a table that compares them.

train.seed sets weights and data order: the runs of one seed use the same batches in the same order and the same
initial weights with every recipe. Complete runs in OUT are not repeated.
"""

import concurrent.futures
import json
import os
import pathlib
import queue
import shlex
import signal
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read_log(folder):
    log = folder / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    evaluations = {line["step"]: line for line in lines if line.get("kind") == "eval"}
    steps = [line for line in lines if line.get("kind") == "step"]
    return evaluations, steps


def train(args, prefix, recipe, seed, environment):
    folder = args.out / f"{recipe}-{seed}"
    evaluations, _ = read_log(folder)
    if args.steps not in evaluations:
        command = [args.octet, "train", args.config]
        command += [f"precision.recipe={recipe}", f"train.seed={seed}", f"train.steps={args.steps}", f"out={folder}"]
        command += [f"data.train={prefix}_train", f"data.validation={prefix}_val"]
        command += ["checkpoint.interval=0", "resume=never", *args.set]
        started = time.monotonic()
        process = subprocess.Popen(shlex.split(args.prefix) + command, stdout=subprocess.DEVNULL, env=environment)
        try:
            status = process.wait(timeout=60 * args.minutes if args.minutes else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # ends it with a checkpoint
            status = process.wait()
        print(f"{recipe} seed {seed}: {time.monotonic() - started:.0f} s", flush=True)
        if status != 0:
            raise subprocess.CalledProcessError(status, command)
    evaluations, steps = read_log(folder)
    if args.steps not in evaluations:
        raise SystemExit(f"{folder}: stopped after {args.minutes} minutes; the same command goes on")
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


def add_arguments(parser):
    parser.add_argument("--octet", default=ROOT / "build" / "tools" / "octet", help="the program")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1337, 1338, 1339])
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (on a GPU that one run does not fill)")
    parser.add_argument("--gpus", nargs="*", default=[], help="each run has one of these to itself; one run each at once")
    parser.add_argument("--prefix", default="", help="command before each run, such as taskset -c 0,1")
    parser.add_argument("--minutes", type=float, default=0, help="a run is stopped then; with --set resume=auto a later call goes on")
    parser.add_argument("--set", nargs="*", default=[], help="further key=value settings of octet train")


def run_all(args, prefix, wanted):
    """Trains every (recipe, seed) of `wanted` on the sets PREFIX_train and PREFIX_val, and prints the table."""
    devices = queue.SimpleQueue()
    for gpu in args.gpus:
        devices.put(gpu)

    def run(pair):
        gpu = devices.get() if args.gpus else None
        try:
            environment = dict(os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {}))
            return train(args, prefix, *pair, environment)
        finally:
            if gpu is not None:
                devices.put(gpu)

    with concurrent.futures.ThreadPoolExecutor(len(args.gpus) or args.jobs) as pool:
        runs = list(pool.map(run, wanted))
    runs.sort(key=lambda r: (args.recipes.index(r["recipe"]), r["seed"]))
    (args.out / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")
    print(table(runs))
