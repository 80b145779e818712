#!/usr/bin/env python3
"""The serving table of one GPU: throughput, latency, in-flight batching against static, and the time to a first token.

    benchmarks/run_serving.py OUT --octet build/cuda/tools/octet [--rows gptj llama3_fp8 ...] [--trace AzureLLM...conv.csv]
                              [--vllm python3]

Random weights of the named models, FP8 weights and an FP8 cache unless a row says otherwise. Each row is printed when it
is done and kept as OUT/ROW.json; a row that fails or times out is named, with the end of its output in OUT/ROW.err.
With --vllm PYTHON, vLLM runs the same rows first, one model at a time (vllm_serving.py). Rows start_* need
--folder, a model folder on a local disk (benchmarks/random_llama.py makes one of 7B).
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
RATE, FIRST, EACH, WHOLE = "output tok/s", "first token ms", "tok/s of a request", "seconds"
PRECISIONS = {
    "fp8": "--recipe fp8-current --kv-cache e4m3".split(),
    "bf16": "--recipe bf16 --kv-cache bf16".split(),
}


@dataclasses.dataclass
class Row:
    figure: str
    model: str = ""
    prompt: int = 0
    output: int = 0
    requests: int = 0
    sequences: int = 8
    step_tokens: int = 2048
    precision: str = "fp8"
    policy: str = ""

    def words(self, requests, trace):
        """Arguments of octet bench."""
        if self.policy:
            words = f"trace {self.model} --at-once -n {requests} --policy {self.policy} --context 8192 --max-sequences 256"
            return words.split() + ["--warmup", "16", "--trace", trace]
        words = f"{self.model} -i {self.prompt} -o {self.output} -n {requests} --max-sequences {self.sequences}"
        if self.figure == RATE:
            step = f"--max-step-tokens {self.step_tokens} --context {self.prompt + self.output + 128} --warmup 32"
            return f"throughput {words} {step}".split()
        return f"latency {words} --context 4096".split()

    def vllm(self, requests, trace):
        """Options of vllm_serving.py and the path of the figure in its result; none if vLLM has no such row."""
        pair = f"{self.prompt}/{self.output}"
        if self.figure == WHOLE or self.policy not in ("", "max-utilization"):
            return {}, None
        if self.policy:
            return {"--trace": [trace], "--trace-requests": [str(requests)]}, ("trace",)
        if self.figure == RATE:
            return {"--throughput": [f"{pair}x{requests}"]}, ("throughput", f"{pair}x{requests}")
        if self.figure == EACH:
            return {"--one-request": [pair]}, ("one_request", pair)
        return {"--first-token": [str(self.prompt)]}, ("first_token", str(self.prompt))


ROWS = {
    "gptj_128_128": Row(RATE, "gptj-6b", 128, 128, 5000, 1024),
    "llama2_128_128": Row(RATE, "llama2-7b", 128, 128, 4000, 1024),
    "llama2_2048_128": Row(RATE, "llama2-7b", 2048, 128, 500, 256, 4096),
    "llama2_fp8": Row(EACH, "llama2-7b", 128, 256, 4),
    "llama3_bf16": Row(EACH, "llama3-8b", 128, 256, 4, precision="bf16"),
    "llama3_fp8": Row(EACH, "llama3-8b", 128, 256, 4),
    "first_128": Row(FIRST, "llama2-7b", 128, 8, 12),
    "first_2048": Row(FIRST, "llama2-7b", 2048, 8, 12),
    "llama3_first_128": Row(FIRST, "llama3-8b", 128, 8, 12),
    "llama3_128_2048": Row(RATE, "llama3-8b", 128, 2048, 820, 820),
    "llama3_1000_1000": Row(RATE, "llama3-8b", 1000, 1000, 900, 900),
    "azure_max-utilization": Row(RATE, "llama3-8b", requests=3000, policy="max-utilization"),
    "azure_never-evict": Row(RATE, "llama3-8b", requests=3000, policy="never-evict"),
    "azure_packed-lockstep": Row(RATE, "llama3-8b", requests=3000, policy="packed-lockstep"),
    "azure_padded-static": Row(RATE, "llama3-8b", requests=3000, policy="padded-static"),
    "llama2_128_2048": Row(RATE, "llama2-7b", 128, 2048, 230, 256),
    "start_bf16": Row(WHOLE, precision="bf16"),
    "start_fp8": Row(WHOLE),
}


def figure(kind, result):
    if kind == RATE:
        return result["output_tokens_per_second"]
    return 1e3 * result["first_token_seconds"]["p50"] if kind == FIRST else 1 / result["inter_token_seconds"]["p50"]


def command_of(args, name, row):
    if row.figure == WHOLE:
        words = ["--prompt", "The first", "--max-tokens", "1", "--temperature", "0", *PRECISIONS[row.precision][:2]]
        return [args.octet, "generate", args.folder, *words, "--device", args.device]
    if args.model:
        row = dataclasses.replace(row, model=args.model)
    words = row.words(args.requests or row.requests, args.trace) + PRECISIONS[row.precision]
    return [args.octet, "bench", *words, "--random-weights", "--device", args.device, "--json", args.out / f"{name}.json"]


def call(args, command, name, limit):
    """Runs a command; returns seconds and the reason if it failed."""
    started = time.monotonic()
    with open(args.out / f"{name}.txt", "w") as out, open(args.out / f"{name}.err", "w") as errors:
        try:
            code = subprocess.run(command, stdout=out, stderr=errors, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            code = f"stopped after {limit} s"
        except OSError as error:
            code = error.strerror
    tail = (args.out / f"{name}.err").read_text()[-200:].strip().replace("\n", " ")
    return time.monotonic() - started, "" if code == 0 else f"did not run ({code}): {tail}"


def vllm_figures(args, names):
    """vLLM's figures by row, one process per model and precision. Failed ones are named and left out."""
    groups = {}
    for name in names:
        options, place = ROWS[name].vllm(args.requests or ROWS[name].requests, args.trace)
        if place:
            group = groups.setdefault((ROWS[name].model, ROWS[name].precision), ({}, {}))
            group[1][name] = place
            for option, values in options.items():
                group[0].setdefault(option, []).extend(values)
    found = {}
    for (model, precision), (options, places) in groups.items():
        label = f"vllm_{model}_{precision}"
        command = [args.vllm, HERE / "vllm_serving.py", "--model", model, "--precision", precision]
        for option, values in options.items():
            command += [option, *values]
        _, failed = call(args, [*command, "--json", args.out / f"{label}.json"], label, args.limit * len(places))
        if failed:
            print(f"vLLM, {model} {precision}: {failed}\n", flush=True)
            continue
        result = json.loads((args.out / f"{label}.json").read_text())
        print(f"{result['program']} (torch {result['torch']}), {model} {precision}: {result['device']}\n", flush=True)
        for name, place in places.items():
            part = result
            for key in place:
                part = part[key]
            rate = part.get("output_tokens_per_second", part.get("tokens_per_second"))
            found[name] = 1e3 * part["first_token_seconds"] if ROWS[name].figure == FIRST else rate
    return found


def run(args, name, peer):
    row = ROWS[name]
    seconds, failed = call(args, command_of(args, name, row), name, args.limit)
    theirs = f"{peer:.1f}" if peer else ""
    if failed:
        return f"| {name} | {row.figure} | {failed} | {theirs} | | {seconds:.0f} |"
    if row.figure == WHOLE:
        return f"| {name} | {row.figure} | {seconds:.1f} | | | {seconds:.0f} |"
    result = json.loads((args.out / f"{name}.json").read_text())
    host = f"{1e3 * result['host_seconds_per_step']:.2f} ms a step, {result['preemptions']} preemptions"
    return f"| {name} | {row.figure} | {figure(row.figure, result):.1f} | {theirs} | {host} | {seconds:.0f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--octet", default="build/cuda/tools/octet")
    parser.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--trace", help="an Azure trace (AzureLLMInferenceTrace_conv.csv) for the rows azure_*")
    parser.add_argument("--folder", help="model folder of the start_ rows")
    parser.add_argument("--vllm", metavar="PYTHON", help="a Python with vLLM, which runs the same rows; absent leaves it out")
    parser.add_argument("--limit", type=int, default=300, help="seconds a row may take")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", help="another model in every row, without vLLM, to try the script out")
    parser.add_argument("--requests", type=int, help="another number of requests in every row")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in args.rows or ROWS
             if (args.trace or not ROWS[name].policy) and (args.folder or ROWS[name].figure != WHOLE)]
    peers = vllm_figures(args, names) if args.vllm and not args.model else {}
    print("| row | figure | Octet | vLLM | host | wall s |\n|---|---|---|---|---|---|", flush=True)
    for name in names:
        print(run(args, name, peers.get(name)), flush=True)


if __name__ == "__main__":
    main()
