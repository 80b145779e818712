#!/usr/bin/env python3
"""What HTTP costs: streams over `octet serve` against the same streams in one process, then half of them guided.

    benchmarks/serve_against_process.py --octet PATH --model llama3-8b --random-weights --recipe fp8-current \\
        --kv-cache e4m3 --tokenizer gpt2-bpe --fill-vocab 128256 --max-step-tokens 8192 --json result.json

One sitting: `octet bench throughput` with all streams at once; a server; `octet bench serve` with as many streams, then
with half of them following a JSON schema that cannot end early. Prompts are random ids, those of each run others. All streams
wait at once, which a server refuses by default once it has seen how slowly few streams go: --max-wait.
--fill-vocab N fills a GPT-2 vocabulary (encoder.json, vocab.bpe) with words that no merge makes, up to N tokens.
"""

import argparse
import contextlib
import json
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import time

SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 1000000}
COLUMNS = ["output tok/s", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms"]


def filled(folder, size, out):
    """A copy of a GPT-2 vocabulary with `size` tokens."""
    vocabulary = json.loads((folder / "encoder.json").read_text())
    out.mkdir()
    shutil.copy(folder / "vocab.bpe", out)
    vocabulary.update({f"dummy{i}": i for i in range(len(vocabulary), size)})
    (out / "encoder.json").write_text(json.dumps(vocabulary))
    return out


def arrivals(path, rate, prompt, output):
    """A trace of a Poisson process of 20 s."""
    draw, now, lines = random.Random(1), 0.0, ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    while (now := now + draw.expovariate(rate)) < 20:
        lines.append(f"2023-11-16 18:15:{now:09.6f},{prompt},{output}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run(command, result):
    print("$", *command, flush=True)
    subprocess.run([*command, "--json", result], check=True, stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())


@contextlib.contextmanager
def serving(command, log):
    """The URL of a server, which ends with the context."""
    print("$", *command, flush=True)
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while not (found := re.search(r"serving .* at (http://\S+)", log.read_text())):
            if server.poll() is not None:
                raise SystemExit(f"the server ended:\n{log.read_text()}")
            time.sleep(0.2)
        yield found[1]
    finally:
        server.terminate()
        server.wait()


def figures(summary):
    """The row of a run, in the order of COLUMNS."""
    first, between = summary["first_token_seconds"], summary["inter_token_seconds"]
    times = [first["p50"], first["p99"], between["p50"], between["p99"]]
    return [summary["output_tokens_per_second"], *(1e3 * value for value in times)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octet", default="octet", help="the program, built with its server")
    parser.add_argument("--model", required=True, help="a folder, or with --random-weights a named model")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="its folder (default: the model's own)")
    parser.add_argument("--fill-vocab", type=int, default=0, metavar="N")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--recipe")
    parser.add_argument("--kv-cache")
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("-i", "--input", type=int, default=128)
    parser.add_argument("-o", "--output", type=int, default=2048)
    parser.add_argument("--max-step-tokens", type=int, default=8192)
    parser.add_argument("--warmup", type=int, default=8, help="requests of full length before each measurement")
    parser.add_argument("--rate", type=float, default=0, help="requests a second of the steady rows; 0: none")
    parser.add_argument("--serve", default="", metavar="WORDS", help="more options of octet serve, in one word")
    parser.add_argument("--json", type=pathlib.Path, help="file for all figures")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "schema.json").write_text(json.dumps(SCHEMA))
        shared = ["--device", args.device, "--max-sequences", str(args.streams)]
        shared += ["--max-step-tokens", str(args.max_step_tokens), "--context", str(args.input + args.output)]
        for option in ["recipe", "kv_cache"]:
            if value := getattr(args, option):
                shared += ["--" + option.replace("_", "-"), value]
        if args.random_weights:
            shared.append("--random-weights")
        if args.tokenizer:
            tokenizer = args.tokenizer
            if args.fill_vocab:
                tokenizer = filled(tokenizer, args.fill_vocab, folder / "tokenizer")
            shared += ["--tokenizer", str(tokenizer)]
        lengths = ["-i", str(args.input), "-o", str(args.output)]
        streams = ["-n", str(args.streams), *lengths]
        results = {}
        results["in process"] = run([args.octet, "bench", "throughput", args.model, *shared, *streams,
                                     "--warmup", str(args.warmup)], folder / "process.json")
        with serving([args.octet, "serve", args.model, *shared, "--port", "0", "--max-wait", "3600", *args.serve.split()], folder / "log") as url:
            load = [args.octet, "bench", "serve", url, *lengths]
            load += ["-n", str(args.streams), "--warmup", str(args.warmup)]
            results["over HTTP"] = run([*load, "--seed", "3"], folder / "http.json")
            guide = ["--guide", str(folder / "schema.json"), "--guided-share", "0.5"]
            results["half guided"] = run([*load, "--seed", "4", *guide], folder / "guided.json")
            if args.rate:
                trace = ["--trace", str(arrivals(folder / "trace.csv", args.rate, args.input, args.output // 4)), "--seed", "5"]
                results["HTTP, steady"] = run([args.octet, "bench", "serve", url, *trace], folder / "http_steady.json")
        if args.rate:
            results["in process, steady"] = run([args.octet, "bench", "trace", args.model, *shared, *trace], folder / "steady.json")

    for case, summary in results.items():
        if summary["failed"]:
            raise SystemExit(f"{case}: {summary['failed']} of {summary['requests']} requests failed: {summary['first_error']}")
    rows = {case: figures(summary) for case, summary in results.items()}
    print(f"\n{'':20}" + "".join(f"{column:>14}" for column in COLUMNS))
    for case, row in rows.items():
        print(f"{case:20}" + "".join(f"{value:14.2f}" for value in row))
    process, http, guided = list(rows.values())[:3]
    print(f"\nover HTTP: {100 * http[0] / process[0]:.2f} % of the throughput in process; TTFT p50 {http[1] - process[1]:+.2f} ms, "
          f"ITL p99 {http[4] - process[4]:+.2f} ms")
    print(f"half guided: {100 * guided[0] / http[0]:.2f} % of the throughput unguided")
    if args.rate:
        steady, alone = rows["HTTP, steady"], rows["in process, steady"]
        print(f"steady: TTFT p50 {steady[1] - alone[1]:+.2f} ms, ITL p99 {steady[4] - alone[4]:+.2f} ms")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
