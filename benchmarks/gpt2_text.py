#!/usr/bin/env python3
"""GPT-2 124M from scratch on real text: FP8 recipes against bf16, held-out loss; then what quantizing it costs.

Collects text of the machine (collect_text.py: source code and documents), tokenizes it with GPT-2's vocabulary, trains configs/gpt2_124m.yaml under every recipe from the same weights over the same batches, and prints the
held-out losses. The defaults are 1,500 steps of 131,072 tokens. The models stay in OUT/RECIPE-SEED/. --rows goes on with
the first of them (quantized_rows.py): its perplexity in INT8 and INT4 by every method and with smaller KV caches, and how
much faster prompt lookup makes it continue source code. All is kept in OUT: with --minutes a call ends in time, and the
same command goes on. --prepare stops before training; a later call, on another machine too, needs OUT/data alone.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import paired_runs
import quantized_rows

CODE = {".py", ".h", ".hpp", ".hh", ".cuh", ".cu", ".c", ".cc", ".cpp", ".js", ".pl", ".pm"}


def choose_prompts(lines, count=16, characters=1000, shortest=8000):
    """Pieces of held-out source code, from a third of a file on, whole lines at the beginning."""
    for line in lines:
        document = json.loads(line)
        text = document["text"]
        if document.get("extension") in CODE and len(text) >= shortest and text.isascii() and count > 0:
            first = text.index("\n", len(text) // 3) + 1
            count -= 1
            yield json.dumps({"prompt": text[first : first + characters]}) + "\n"


def prepare(args):
    """Prefix of the tokenized sets; beside them prompts.jsonl."""
    here = pathlib.Path(__file__).resolve().parent
    text, data = args.out / "text", args.out / "data"
    prefix, prompts = data / "text", data / "prompts.jsonl"
    if prompts.exists():
        return prefix
    if not args.text:
        sys.exit(f"{prompts} is not there: give the folder of GPT-2's vocabulary and folders to gather text from")
    if not (text / "validation.jsonl").exists():
        command = [sys.executable, here / "collect_text.py", *args.text, "--out", text]
        subprocess.run([*command, "--max-bytes", str(args.max_bytes)], check=True)
    data.mkdir(parents=True, exist_ok=True)
    for name, suffix in {"train": "train", "validation": "val"}.items():
        command = [args.octet, "data", "--tokenizer", args.tokenizer, "--out", f"{prefix}_{suffix}"]
        subprocess.run([*command, text / f"{name}.jsonl"], check=True)
    with open(text / "validation.jsonl") as lines:
        prompts.write_text("".join(choose_prompts(lines)))
    return prefix


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", nargs="?", help="folder of GPT-2's vocabulary (encoder.json and vocab.bpe)")
    parser.add_argument("text", nargs="*", help="folders to gather text from: /usr/include /usr/share ...")
    parser.add_argument("--max-bytes", type=int, default=400_000_000, help="of text")
    parser.add_argument("--prepare", action="store_true", help="gather and tokenize, no more")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/gpt2_text"))
    parser.add_argument("--recipes", nargs="+", default=["bf16", "fp8-current", "auto"])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--config", type=pathlib.Path, default=paired_runs.ROOT / "configs" / "gpt2_124m.yaml")
    paired_runs.add_arguments(parser)
    quantized_rows.add_arguments(parser)
    parser.set_defaults(seeds=[1337])
    args = parser.parse_args()
    args.octet = str(pathlib.Path(args.octet).resolve())
    args.out = args.out.resolve()
    args.set = ["train.micro_batch=16", "optimizer.warmup_steps=150", "checkpoint.best=false", "resume=auto", *args.set]
    args.deadline = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    prefix = prepare(args)
    if args.prepare:
        return
    paired_runs.run_all(args, prefix, [(recipe, seed) for seed in args.seeds for recipe in args.recipes])
    if args.rows:
        quantized_rows.measure(args, args.out / f"{args.recipes[0]}-{args.seeds[0]}", prefix)


if __name__ == "__main__":
    main()
