#!/usr/bin/env python3
"""How much of the loss that plain rounding to codes costs each method of `octet quantize` wins back.

Trains a small Llama on a text (a folder of sources, a file), then writes it in INT4 and INT8 by every method and
prints a table: perplexity on held-out text, what is lost in nats a token, and the share of rtn's loss won back. With
--model an existing folder is quantized instead; its text is then given as --corpus PREFIX of octet data.
"""

import argparse
import math
import pathlib
import re
import shutil
import subprocess

import paired_runs

METHODS = {
    "int4": [["rtn"], ["awq"], ["gptq"], ["gptq", "--act-order", "group"], ["gptq", "--act-order", "static"]],
    "int8": [["rtn"], ["smoothquant"], ["gptq"]],
}
PATTERN = re.compile(r"perplexity ([0-9.]+) before, ([0-9.]+) after .* on ([0-9]+) tokens")


def train(args):
    tokenizer, prefix, run = args.out / "tokenizer", args.out / "corpus", args.out / "run"
    if not (run / "checkpoints").exists():
        text = [args.text] if args.text else sorted(pathlib.Path("/usr/include/c++").glob("*"))[-1:]

        def call(*words):
            subprocess.run([args.octet, *words], check=True, stdout=subprocess.DEVNULL)

        call("tokenizer", "train", "--vocab-size", "2048", "--out", tokenizer, *text)
        call("data", "--tokenizer", tokenizer, "--split", "0.95,0.05", "--out", prefix, *text)
        sizes = {"size": "llama2-7b", "vocab_size": 2048, "hidden": 256, "heads": 4, "kv_heads": 4, "layers": 4}
        sizes |= {"intermediate": 768, "max_positions": 256}
        words = [f"model.{name}={value}" for name, value in sizes.items()]
        words += [f"data.train={prefix}_train", f"data.validation={prefix}_val", f"out={run}"]
        words += ["precision.recipe=bf16", "optimizer.lr=2e-3", f"train.steps={args.steps}", "checkpoint.interval=0"]
        call("train", paired_runs.ROOT / "configs" / "quickstart.yaml", "checkpoint.content=weights", *words)
    return run, prefix


def quantize(args, model, prefix, words):
    folder = args.out / "-".join(words).replace("--", "")
    command = [args.octet, "quantize", model, "--out", folder, "--calibration", f"{prefix}_train.bin"]
    command += ["--text", f"{prefix}_val.bin", "--max-tokens", args.tokens, "--length", args.length]
    command += ["--samples", args.samples, *words]
    shutil.rmtree(folder, ignore_errors=True)
    output = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    before, after, tokens = PATTERN.search(output).groups()
    return float(before), float(after), int(tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--octet", default=paired_runs.ROOT / "build" / "program" / "tools" / "octet")
    parser.add_argument("--text", help="what to train on (default: the headers of the C++ library)")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/quantize_methods"))
    parser.add_argument("--model", help="quantize this folder instead; with --corpus")
    parser.add_argument("--corpus", help="PREFIX: PREFIX_train.bin calibrates, PREFIX_val.bin measures")
    parser.add_argument("--groups", nargs="+", default=["128", "32", "row"])
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32768, help="of the held-out text")
    args = parser.parse_args()
    args.octet = str(pathlib.Path(args.octet).resolve())
    args.out.mkdir(parents=True, exist_ok=True)
    model, prefix = (args.model, args.corpus) if args.model else train(args)
    settings = [("int4", ["--group", group, sign]) for group in args.groups for sign in ("--symmetric", "--asymmetric")]
    print("| format | method | perplexity | lost, nats a token | of rtn's loss won back |\n|---|---|---|---|---|")
    for to, how in [*settings, ("int8", [])]:
        plain = None
        for method in METHODS[to]:
            before, after, tokens = quantize(args, model, prefix, ["--to", to, *how, "--method", *method])
            lost = math.log(after / before)
            plain = lost if plain is None else plain
            share = "" if method == ["rtn"] or plain <= 0 else f"{100 * (1 - lost / plain):.0f} %"
            title = " ".join([to, *how]).replace("--", "")
            print(f"| {title} | {' '.join(method).replace('--', '')} | {after:.4f} | {lost:.5f} | {share} |", flush=True)
    print(f"\n{before:.4f} before, on {tokens} held-out tokens; {args.samples} windows of {args.length} calibrate")


if __name__ == "__main__":
    main()
