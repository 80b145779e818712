"""What a trained model loses in smaller weights and KV caches, and what prompt lookup gains it (gpt2_text.py --rows).

A row is measured once and kept in OUT/rows/NAME.json; after args.deadline none is begun. Perplexity is of held-out
tokens in windows of --length; a row's rise is over the same model in bf16, on the same device, measured the same way.
"""

import json
import math
import re
import statistics
import subprocess
import sys
import time

INT4_RECIPES = ["w4a8", "w4a16"]
INT4_METHODS = ["rtn", "awq", "gptq"]
CACHES = ["bf16", "int8", "e4m3"]
GENERATED = re.compile(r"prompt tokens at .* tok/s, (\d+) generated at ([0-9.]+) tok/s")
DRAFTED = re.compile(r"\[(\d+) tokens drafted, (\d+) accepted\]")


def add_arguments(parser):
    parser.add_argument("--rows", action="store_true", help="quantize the first recipe's model and measure it")
    parser.add_argument("--device", default="auto", help="of rows: auto, cpu or cuda")
    parser.add_argument("--int8-device", default="cpu", help="of the row with weights in int8")
    parser.add_argument("--lookup-devices", nargs="+", default=["auto"], help="of the rows of prompt lookup")
    parser.add_argument("--lookup-threads", type=int, default=0, help="of --lookup-devices that are cpu; 0 = all")
    parser.add_argument("--tokens", type=int, default=262144, help="held-out tokens of a row; 0 = all")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a window")
    parser.add_argument("--samples", type=int, default=128, help="windows that calibrate")
    parser.add_argument("--generate", type=int, default=384, help="tokens that continue a prompt")
    parser.add_argument("--repeats", type=int, default=3, help="of each side of prompt lookup, in turn")


class Rows:
    def __init__(self, args, model, prefix):
        self.args, self.model, self.prefix = args, model, prefix
        (args.out / "rows").mkdir(parents=True, exist_ok=True)

    def octet(self, *words):
        command = [self.args.octet, *map(str, words)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr.strip()[-2000:]}")
        return result

    def row(self, name, make):
        """What make() gave, in this call or an earlier one."""
        path = self.args.out / "rows" / f"{name}.json"
        if not path.exists():
            if time.monotonic() > self.args.deadline:
                raise SystemExit(f"{name}: no time left; the same command goes on")
            started = time.monotonic()
            value = make()
            value["seconds"] = round(time.monotonic() - started, 1)
            path.with_suffix(".part").write_text(json.dumps(value) + "\n")
            path.with_suffix(".part").rename(path)
            print(f"{name}: {json.dumps(value)}", file=sys.stderr, flush=True)
        return json.loads(path.read_text())

    def perplexity(self, name, folder, recipe, device, *words):
        text = ["--data", f"{self.prefix}_val", "--length", self.args.length, "--max-tokens", self.args.tokens]
        how = ["--recipe", recipe, "--device", device, "--json", *words]
        return self.row(name, lambda: json.loads(self.octet("eval", folder, *text, *how).stdout))

    def quantized(self, to, method):
        folder = self.args.out / f"{to}-{method}"
        if not (folder / "config.json").exists():  # written last

            def make():
                how = ["--to", to, "--method", method, "--device", self.args.device]
                text = ["--calibration", f"{self.prefix}_train.bin", "--samples", self.args.samples]
                text += ["--length", self.args.length]
                return {"output": self.octet("quantize", self.model, "--out", folder, *how, *text).stdout}

            (self.args.out / "rows" / f"quantize-{to}-{method}.json").unlink(missing_ok=True)
            self.row(f"quantize-{to}-{method}", make)
        return folder

    def continued(self, device, draft, temperature):
        """Continues the prompts one after another: tokens/s over all but the first, which warms up; the texts' ids."""
        prompts = self.prefix.parent / "prompts.jsonl"
        words = ["--prompts-file", prompts, "--max-tokens", self.args.generate, "--ignore-eos", "--temperature", temperature]
        words += ["--recipe", "bf16", "--device", device, "--max-sequences", 1, "--stats", "--json", *draft]
        if device == "cpu":
            words += ["--threads", self.args.lookup_threads]
        result = self.octet("generate", self.model, *words)
        texts = [(int(count), float(rate)) for count, rate in GENERATED.findall(result.stderr)]
        drafted = DRAFTED.search(result.stderr)
        return {
            "rate": sum(count for count, _ in texts[1:]) / sum(count / rate for count, rate in texts[1:]),
            "rates": [rate for _, rate in texts],
            "ids": [json.loads(line)["ids"] for line in result.stdout.splitlines()],
            "accepted": int(drafted[2]) / int(drafted[1]) if drafted else None,
        }

    def lookup(self, device, temperature):
        runs = {"none": [], "ngram": []}
        for _ in range(self.args.repeats):
            for name, draft in (("none", []), ("ngram", ["--draft", "ngram"])):
                runs[name].append(self.continued(device, draft, temperature))
        rates = {name: statistics.median(run["rate"] for run in all_runs) for name, all_runs in runs.items()}
        none, ngram = runs["none"][0], runs["ngram"][0]
        each = [b / a for a, b in zip(none["rates"][1:], ngram["rates"][1:])]
        return {
            "none": rates["none"],
            "ngram": rates["ngram"],
            "speed-up": rates["ngram"] / rates["none"],
            "speed-ups of runs": [b["rate"] / a["rate"] for a, b in zip(runs["none"], runs["ngram"])],
            "slowest and fastest text": [min(each), max(each)],
            "accepted": ngram["accepted"],
            "equal texts": sum(a == b for a, b in zip(none["ids"], ngram["ids"])),
            "texts": len(none["ids"]),
        }


def measure(args, model, prefix):
    rows = Rows(args, model, prefix)
    table = []  # name, recipe, device, result, rise in percent, share of rtn's loss won back

    def add(name, recipe, device, result, base=None, rtn=None):
        rise = None if base is None else 100 * (result["perplexity"] / base["perplexity"] - 1)
        won = None if rtn is None else 100 * (1 - (result["loss"] - base["loss"]) / (rtn["loss"] - base["loss"]))
        table.append({"model": name, "recipe": recipe, "device": device, **result, "rise": rise, "won": won})

    plain = {}
    for device in dict.fromkeys([args.device, args.int8_device]):
        plain[device] = rows.perplexity(f"bf16-{device}", model, "bf16", device)
        add("as trained", "bf16", device, plain[device])
    add("as trained", "fp32", args.device, rows.perplexity("fp32", model, "fp32", args.device), plain[args.device])
    folder = rows.quantized("int8", "smoothquant")
    result = rows.perplexity("int8", folder, "int8", args.int8_device)
    add("INT8, smoothquant", "w8a8", args.int8_device, result, plain[args.int8_device])
    for recipe in INT4_RECIPES:
        rtn = None
        for method in INT4_METHODS:
            result = rows.perplexity(f"int4-{method}-{recipe}", rows.quantized("int4", method), recipe, args.device)
            add(f"INT4, {method}", recipe, args.device, result, plain[args.device], rtn)
            rtn = rtn or result
    base = None
    for cache in CACHES:
        try:
            result = rows.perplexity(f"cache-{cache}", model, "bf16", args.device, "--kv-cache", cache)
        except RuntimeError as error:
            print(f"KV cache in {cache} is left out: {error}", file=sys.stderr)
            continue
        add(f"KV cache in {cache}", "bf16", args.device, result, base)
        base = base or result
    lookups = {}
    for device in args.lookup_devices:
        for temperature in (0, 1):
            made = rows.row(f"lookup-{device}-{temperature}", lambda: rows.lookup(device, temperature))
            lookups[device, temperature] = made

    def cell(value, digits):
        return "" if value is None or math.isnan(value) else f"{value:+.{digits}f}"

    lines = ["| model | recipe | device | perplexity | rise, % | of rtn's loss won back, % |", "|---|---|---|---|---|---|"]
    for r in table:
        begin = f"| {r['model']} | {r['recipe']} | {r['device']} | {r['perplexity']:.4f} |"
        lines.append(f"{begin} {cell(r['rise'], 3)} | {cell(r['won'], 0)} |")
    lines += ["", "| prompt lookup | none, tokens/s | ngram, tokens/s | speed-up | drafts accepted, % | texts that are equal |"]
    lines.append("|---|---|---|---|---|---|")
    for (device, temperature), r in lookups.items():
        begin = f"| {device}, temperature {temperature} | {r['none']:.1f} | {r['ngram']:.1f} | {r['speed-up']:.2f}"
        accepted = "" if r["accepted"] is None else f"{100 * r['accepted']:.0f}"
        lines.append(f"{begin} | {accepted} | {r['equal texts']} of {r['texts']} |")
    print("\n".join(lines))
    lookups = [{"device": device, "temperature": temperature, **r} for (device, temperature), r in lookups.items()]
    version = rows.octet("--version").stdout.splitlines()[0]
    record = {"version": version, "steps": args.steps, "tokens": table[0]["tokens"], "rows": table, "lookup": lookups}
    (args.out / "rows.json").write_text(json.dumps(record, indent=1) + "\n")
