#!/usr/bin/env python3
"""500 steps of tinyshakespeare on two stages of two data and two tensor ranks each (threads of one process) against one rank:
of every seed the validation loss is as near to one rank's as one rank's are to each other over seeds.
Usage: stages_shakespeare_test.py OCTET. Exit status 77: the text is absent."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

STEPS, SEEDS, RECIPES = 500, (1337, 1338, 1339), ("fp32", "fp8-current")
MESHES = {"one rank": [], "pp 2 x dp 2 x tp 2": ["parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2"]}
# Four micro-batches, two of each data rank. The head is tied and gradients are clipped: what is summed otherwise in stages.
SETTINGS = f"""train.device=cpu resume=never model.size=gpt2-nano model.layers=4 model.hidden=64 model.heads=4 model.bias=false
  data.sequence_length=64 data.sampling=random train.micro_batch=3 train.global_batch=12 train.steps={STEPS}
  optimizer.lr=2e-3 optimizer.warmup_steps=50 optimizer.beta2=0.99 eval.interval={STEPS} checkpoint.interval=0
  data.train=shakespeare_train data.validation=shakespeare_val""".split()


def run(work, *words):
    subprocess.run([str(word) for word in words], check=True, cwd=work, stdout=subprocess.DEVNULL)


def last_loss(octet, work, recipe, mesh, seed):
    out = work / f"{recipe} {mesh} {seed}"
    run(work, octet, "train", *SETTINGS, *MESHES[mesh], f"precision.recipe={recipe}", f"train.seed={seed}", f"out={out}")
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["kind"] == "eval" and event["step"] == STEPS]
    assert len(losses) == 1, events[-3:]
    return losses[0]


def main():
    octet = pathlib.Path(sys.argv[1]).resolve()
    data = os.environ.get("OCTET_TEST_DATA") or pathlib.Path(__file__).resolve().parents[3] / "shared/data"
    text = pathlib.Path(data) / "text/tinyshakespeare/input.txt"
    if not text.exists():
        print(f"skipped: {text} is absent: set OCTET_TEST_DATA to the folder that holds text/tinyshakespeare")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        run(work, octet, "tokenizer", "train", "--kind", "char", "--out", "char", text)
        run(work, octet, "data", "--tokenizer", "char", "--split", "0.9,0.1", "--split-by", "tokens", "--out", "shakespeare", text)
        for recipe in RECIPES:
            losses = {mesh: [last_loss(octet, work, recipe, mesh, seed) for seed in SEEDS] for mesh in MESHES}
            one, stages = losses.values()
            spread, gaps = max(one) - min(one), [y - x for x, y in zip(one, stages)]
            for mesh, of_seeds in losses.items():
                print(f"{recipe}, {mesh}: {', '.join(f'{loss:.4f}' for loss in of_seeds)}")
            print(f"{recipe}: spread over seeds {spread:.4f}, gaps {', '.join(f'{gap:+.1e}' for gap in gaps)}", flush=True)
            assert max(one) < 3, "the runs have learned nothing"
            assert max(map(abs, gaps)) <= spread, f"{recipe}: a gap is larger than the spread over seeds"


if __name__ == "__main__":
    main()
