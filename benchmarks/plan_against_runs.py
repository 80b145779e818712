#!/usr/bin/env python3
"""Seconds of a step that `octet plan` tells, beside those measured on the same device in docs/results/data.

    python3 benchmarks/plan_against_runs.py build/tools/octet             # a table
    python3 benchmarks/plan_against_runs.py build/tools/octet --json FILE # and rows of docs/results/data/tuner.json
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

DATA = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results" / "data"
LLAMA = "model.size=llama2-7b model.layers=8 data.sequence_length=4096 train.micro_batch=2"
GPT3 = "model.size=gpt3-5b model.layers=8 data.sequence_length=2048 train.micro_batch=4"
MODELS = {
    "8 layers of Llama-2-7B, B 2 S 4096": LLAMA,
    "8 layers of GPT3-5B, B 4 S 2048": GPT3,
    "GPT-2 1558M, B 16 S 1024": "model.size=gpt2-1558m data.sequence_length=1024 train.micro_batch=16",
    "GPT-2 124M, B 16 S 1024": "model.size=gpt2-124m data.sequence_length=1024 train.micro_batch=16",
    "Gemma 2B, B 4 S 2048": "model.size=gemma-2b data.sequence_length=2048 train.micro_batch=4",
    "OPT 1.3B, B 8 S 2048": "model.size=opt-1.3b data.sequence_length=2048 train.micro_batch=8",
}
AXES = {"--tensor": "parallel.tensor", "--data": "parallel.data", "--context": "parallel.context",
        "--pipeline": "parallel.pipeline", "--chunks": "parallel.chunks", "--shard": "parallel.shard"}


def claims(name):
    data = json.loads((DATA / name).read_text())
    return {claim["claim"]: claim["rows"] for claim in data["claims"]}


def settings_of(flags):
    """"--data 2 --shard gradients" as settings, and the number of data ranks."""
    words, made, data = flags.replace("`", "").split(), [], 1
    for i, word in enumerate(words):
        if word == "--sequence":
            made.append("parallel.sequence=true")
        elif word in AXES:
            made.append(f"{AXES[word]}={words[i + 1]}")
            data *= int(words[i + 1]) if word == "--data" else 1
    return " ".join(made), data


def cases():
    """(what, settings, measured ms)."""
    gpu, ranks = claims("gpu_training.json"), claims("ranks.json")
    for row in gpu["gpu_step"]:
        if row[2] == "Octet" and row[3] not in ("fp32", "tf32") and row[0] in MODELS:
            yield row[0], row[3], MODELS[row[0]], row[4]
    for row in gpu["gpu_fusions"]:
        if row[0] in MODELS and row[0].startswith(("Gemma", "OPT")):
            yield row[0], row[1], MODELS[row[0]], row[3]
    for row in ranks["ranks_training"]:
        flags = row[0].split("`")[1]
        axes, data = settings_of(flags)
        yield "Llama-2-7B, 8 layers: " + flags, row[1], f"{LLAMA} {axes} train.global_batch={2 * data}", row[3]
    for row in ranks["ranks_four"]:
        model, *what, flags = row[0].split(", ")
        axes, data = settings_of(flags)
        if model.startswith("8 layers"):
            yield row[0], row[1], f"{LLAMA} {axes} train.global_batch={2 * data}", row[2]
        else:
            count = what[0].split()[0]
            yield row[0], row[1], (f"model.size={model.lower().replace('llama-2-', 'llama2-').replace('llama-3-', 'llama3-')} "
                                   f"data.sequence_length=4096 train.micro_batch=1 train.global_batch={count} {axes}"), row[2]
    for row in ranks["ranks_models"]:
        size = "llama2-13b" if "13B" in row[0] else "llama2-7b"
        count = int(row[0].split(", ")[1].split()[0])
        axes, _ = settings_of(row[2])
        more = "" if row[2] != "one" else " recompute=selective"
        yield (f"{row[0]}: {row[2].replace('`', '')}", row[1],
               f"model.size={size} data.sequence_length=4096 train.micro_batch=1 train.global_batch={count} {axes}{more}",
               row[3])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows, errors = [], []
    for what, recipe, settings, measured in dict.fromkeys(cases()):
        words = [*settings.split(), f"precision.recipe={recipe}"]
        done = subprocess.run([options.octet, "plan", *words, "--target", options.target, "--json"], capture_output=True,
                              text=True)
        if done.returncode != 0:
            print(f"{what} {recipe}: {done.stderr.strip().splitlines()[-1]}")
            continue
        seconds = json.loads(done.stdout)["step_seconds"]
        error = 100 * (1000 * seconds / float(measured) - 1)
        errors.append(abs(error))
        rows.append([what, recipe, measured, round(1000 * seconds, 1), round(error, 1)])
        print(f"{what:<78} {recipe:<12} measured {measured:>8} ms  planned {1000 * seconds:>8.1f} ms  {error:+6.1f} %", flush=True)
    print(f"{len(errors)} steps: mean error {statistics.mean(errors):.1f} %, largest {max(errors):.1f} %")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
