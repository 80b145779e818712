#!/usr/bin/env python3
"""The serving table of one GPU: throughput, latency, in-flight batching against static, and the time to a first token.

    benchmarks/run_serving.py OUT --octet build/tools/octet [--rows gptj llama3_fp8 ...] [--trace AzureLLM...conv.csv]

Random weights of the named models, FP8 weights and an FP8 cache unless a row says otherwise. Each row is printed when it
is done and kept as OUT/ROW.json; a row that fails or takes too long is named, with the end of its output in OUT/ROW.err.
Rows start_* need --folder, a model folder on a local disk (benchmarks/random_llama.py makes one of 7B).
"""

import argparse
import json
import pathlib
import subprocess
import time

FP8 = "--recipe fp8-current --kv-cache e4m3".split()
BF16 = "--recipe bf16 --kv-cache bf16".split()


def throughput(model, prompt, output, requests, sequences, step_tokens):
    words = f"throughput {model} -i {prompt} -o {output} -n {requests} --context {prompt + output + 128}"
    return f"{words} --max-sequences {sequences} --max-step-tokens {step_tokens} --warmup 32".split() + FP8


def latency(model, prompt, output, requests, precision):
    return f"latency {model} -i {prompt} -o {output} -n {requests} --max-sequences 8 --context 4096".split() + precision


def azure(policy):
    words = f"trace llama3-8b --at-once -n 3000 --policy {policy} --context 8192 --max-sequences 256 --warmup 16"
    return words.split() + FP8


# Words of octet bench; what is read from its figures; must and aim. Rates in output tokens a second.
RATE, FIRST, EACH = "output tok/s", "first token ms", "tok/s of a request"
ROWS = {
    "gptj_128_128": (throughput("gptj-6b", 128, 128, 5000, 1024, 2048), RATE, 26000, 32000),
    "llama2_128_128": (throughput("llama2-7b", 128, 128, 4000, 1024, 2048), RATE, 20700, 26000),
    "llama2_2048_128": (throughput("llama2-7b", 2048, 128, 500, 256, 4096), RATE, 2500, 2800),
    "llama3_bf16": (latency("llama3-8b", 128, 256, 4, BF16), EACH, 200, 245),
    "llama3_fp8": (latency("llama3-8b", 128, 256, 4, FP8), EACH, 340, 440),
    "first_128": (latency("llama2-7b", 128, 8, 12, FP8), FIRST, 5.7, 4),
    "first_2048": (latency("llama2-7b", 2048, 8, 12, FP8), FIRST, 30, 25),
    "llama3_128_2048": (throughput("llama3-8b", 128, 2048, 820, 820, 2048), RATE, 22000, 28000),
    "llama3_1000_1000": (throughput("llama3-8b", 1000, 1000, 900, 900, 2048), RATE, 15000, 19000),
    "azure_max-utilization": (azure("max-utilization"), RATE, None, None),
    "azure_never-evict": (azure("never-evict"), RATE, None, None),
    "azure_packed-lockstep": (azure("packed-lockstep"), RATE, None, None),
    "azure_padded-static": (azure("padded-static"), RATE, None, None),
    "llama2_128_2048": (throughput("llama2-7b", 128, 2048, 230, 256, 2048), RATE, 8400, 10500),
    "start_bf16": (["--recipe", "bf16"], "seconds", 20, 5),
    "start_fp8": (["--recipe", "fp8-current"], "seconds", 20, 5),
}


def figure(kind, result):
    if kind == RATE:
        return result["output_tokens_per_second"]
    return 1e3 * result["first_token_seconds"]["p50"] if kind == FIRST else 1 / result["inter_token_seconds"]["p50"]


def command_of(args, name, words):
    if name.startswith("start_"):
        prompt = ["--prompt", "The first", "--max-tokens", "1", "--temperature", "0"]
        return [args.octet, "generate", args.folder, *prompt, *words, "--device", args.device]
    words = list(words)
    if args.model:
        words[1] = args.model
    if args.requests:
        words[words.index("-n") + 1] = str(args.requests)
    if words[0] == "trace":
        words += ["--trace", args.trace]
    return [args.octet, "bench", *words, "--random-weights", "--device", args.device, "--json", args.out / f"{name}.json"]


def run(args, name):
    words, kind, must, aim = ROWS[name]
    wanted = f"{must:g} / {aim:g}" if must else ""
    started = time.monotonic()
    with open(args.out / f"{name}.txt", "w") as out, open(args.out / f"{name}.err", "w") as errors:
        try:
            code = subprocess.run(command_of(args, name, words), stdout=out, stderr=errors, timeout=args.limit).returncode
        except subprocess.TimeoutExpired:
            code = f"stopped after {args.limit} s"
    seconds = time.monotonic() - started
    if code != 0:
        tail = (args.out / f"{name}.err").read_text()[-200:].strip().replace("\n", " ")
        return f"| {name} | {kind} | did not run ({code}): {tail} | {wanted} | | {seconds:.0f} |"
    if kind == "seconds":
        return f"| {name} | {kind} | {seconds:.1f} | {wanted} | | {seconds:.0f} |"
    result = json.loads((args.out / f"{name}.json").read_text())
    host = f"{1e3 * result['host_seconds_per_step']:.2f} ms a step, {result['preemptions']} preemptions"
    return f"| {name} | {kind} | {figure(kind, result):.1f} | {wanted} | {host} | {seconds:.0f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--octet", default="build/cuda/tools/octet")
    parser.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--trace", help="the Azure conversation trace (AzureLLMInferenceTrace_conv.csv)")
    parser.add_argument("--folder", help="model folder of the start_ rows")
    parser.add_argument("--limit", type=int, default=300, help="seconds a row may take")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", help="another model in every row, to try the script out")
    parser.add_argument("--requests", type=int, help="another number of requests in every row")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print("| row | figure | measured | must / aim | host | wall s |\n|---|---|---|---|---|---|", flush=True)
    for name in args.rows or ROWS:
        if name.startswith("azure_") and not args.trace or name.startswith("start_") and not args.folder:
            continue
        print(run(args, name), flush=True)


if __name__ == "__main__":
    main()
