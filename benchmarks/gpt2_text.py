#!/usr/bin/env python3
"""GPT-2 124M from scratch on real text: FP8 recipes against bf16, held-out loss, paired data order.

Collects text of the machine (collect_text.py: source code and documents), tokenizes it with GPT-2's vocabulary, trains configs/gpt2_124m.yaml under every recipe from the same weights over the same batches, and prints the
held-out losses. The defaults are 1,500 steps of 131,072 tokens. The models stay in OUT/RECIPE-SEED/.
"""

import argparse
import pathlib
import subprocess
import sys

import paired_runs


def prepare(args):
    here = pathlib.Path(__file__).resolve().parent
    text, prefix = args.out / "text", args.out / "data" / "text"
    if not (text / "validation.jsonl").exists():
        subprocess.run([sys.executable, here / "collect_text.py", *args.text, "--out", text], check=True)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for name, suffix in {"train": "train", "validation": "val"}.items():
        if not pathlib.Path(f"{prefix}_{suffix}.bin").exists():
            command = [args.octet, "data", "--tokenizer", args.tokenizer, "--out", f"{prefix}_{suffix}"]
            subprocess.run([*command, text / f"{name}.jsonl"], check=True)
    return prefix


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", help="folder of GPT-2's vocabulary (encoder.json and vocab.bpe)")
    parser.add_argument("text", nargs="+", help="folders to gather text from: /usr/include /usr/share ...")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/gpt2_text"))
    parser.add_argument("--recipes", nargs="+", default=["bf16", "fp8-current", "auto"])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--config", type=pathlib.Path, default=paired_runs.ROOT / "configs" / "gpt2_124m.yaml")
    paired_runs.add_arguments(parser)
    parser.set_defaults(seeds=[1337])
    args = parser.parse_args()
    args.octet = str(pathlib.Path(args.octet).resolve())
    args.out = args.out.resolve()
    args.set = ["train.micro_batch=16", "optimizer.warmup_steps=150", "checkpoint.best=false", *args.set]
    prefix = prepare(args)
    paired_runs.run_all(args, prefix, [(recipe, seed) for seed in args.seeds for recipe in args.recipes])


if __name__ == "__main__":
    main()
