#!/usr/bin/env python3
"""Seconds of a step that `octet plan` tells of a target with published figures, beside iteration times of arXiv 2205.05198,
table 5: A100s of 80 GB, tensor 8, sequences of 2,048; full recomputation, and selective with sequence parallelism.

    python3 benchmarks/plan_against_papers.py build/tools/octet
"""

import argparse
import json
import statistics
import subprocess
import sys

# Model, stages, chunks, sequences of a step and of a micro-batch; seconds with full recomputation, and with selective.
ROWS = [("gpt3-22b", 1, 1, 4, 4, 1.42, 1.10), ("gpt3-175b", 8, 3, 64, 1, 18.13, 13.75),
        ("gpt3-530b", 35, 3, 280, 1, 49.05, 37.83), ("gpt3-1t", 64, 1, 512, 1, 94.42, 71.49)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet")
    parser.add_argument("--target", default="a100-80g")
    parser.add_argument("--json", help="write the rows of a table to this file")
    options = parser.parse_args()
    rows = []
    for model, stages, chunks, batch, micro_batch, full, selective in ROWS:
        for what, published in (("full", full), ("selective", selective)):
            words = [f"model.size={model}", "data.sequence_length=2048", f"train.micro_batch={micro_batch}",
                     f"train.global_batch={batch}", "parallel.tensor=8", f"parallel.pipeline={stages}",
                     f"parallel.chunks={chunks}", f"recompute={what}", "precision.recipe=bf16",
                     f"parallel.sequence={'true' if what == 'selective' else 'false'}", "model.vocab_size=51200"]
            done = subprocess.run([options.octet, "plan", *words, "--target", options.target, "--json"], check=True,
                                  capture_output=True, text=True)
            seconds = json.loads(done.stdout)["step_seconds"]
            rows.append([model, 8 * stages, what, published, round(seconds, 2), round(100 * (seconds / published - 1), 1)])
            print(f"{model:<14} {8 * stages:>4} GPUs  {what:<10} published {published:>6.2f} s  planned {seconds:>6.2f} s  "
                  f"{rows[-1][-1]:+6.1f} %", flush=True)
    errors = [abs(row[-1]) for row in rows]
    print(f"{len(rows)} steps: mean error {statistics.mean(errors):.1f} %, largest {max(errors):.1f} %")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
