#!/usr/bin/env python3
"""Runs what the README promises for every family, recipe, device and mesh, by the commands a user types, and writes a table
of what came out: the loss of the first and the last of 20 training steps, and whether the trained run generates.

    benchmarks/promised_runs.py OCTET --device cuda --jobs 8 --json runs.json            # one GPU, or the CPU
    benchmarks/promised_runs.py OCTET --device cuda --mesh tensor=2,data=2 --jobs 1 --json runs.json
    benchmarks/promised_runs.py OCTET --adapters "lora dora" --json runs.json            # on a frozen model of each family
    benchmarks/promised_runs.py OCTET --workloads "bert classify dpo" --json runs.json   # what is not language modelling
    benchmarks/promised_runs.py --table runs.json more.json                              # rows of docs/results/data/runs.json

Models of two layers, 256 wide, with 8 experts where a family has any; sequences of 128 tokens of a text of this repository.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAMILIES = """gpt2 gpt_bigcode gptj gpt_neox opt bloom falcon mpt phi llama mistral qwen2 qwen3 gemma glm glm4 mixtral olmoe
  qwen2_moe qwen3_moe""".split()
MIXTURES = {"mixtral", "olmoe", "qwen2_moe", "qwen3_moe"}
RECIPES = ["fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-block", "auto"]
SERVED = {"cpu": ["bf16", "fp8-current", "int8", "w4i8"], "cuda": ["bf16", "fp8-current", "int8", "w4a8", "w4a16"]}
STEPS = 20
TIMEOUT = 300


def run(command, cwd):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(next((w for w in words if w.startswith("octet: ")), words[-1] if words else "no message"))
    return done.stdout


def common_settings(recipe, device, mesh):
    words = ["data.sequence_length=128", "train.micro_batch=4", "train.global_batch=16", f"train.steps={STEPS}",
             f"train.device={device}", f"precision.recipe={recipe}", "optimizer.lr=1e-3", "eval.interval=0",
             "checkpoint.interval=0", "log.interval=1", "train.threads=2"]
    return words + [f"parallel.{axis}" for axis in mesh.split(",") if axis]


def settings_of(family, recipe, device, mesh):
    words = [f"model.architecture={family}", "model.layers=2", "model.hidden=256", "model.heads=4", "model.head_dim=64",
             f"model.intermediate={1024 if family == 'bloom' else 512}", "data.train=corpus"]
    if family in MIXTURES:
        words += ["model.experts=8", "model.experts_per_token=2"]
    return words + common_settings(recipe, device, mesh)


def train(octet, folder, family, recipe, device, mesh, base=None, method=""):
    out = folder / f"{family}_{recipe}_{device}_{mesh.replace('=', '').replace(',', '_')}{method.replace(':', '_')}"
    words = settings_of(family, recipe, device, mesh)
    if base:
        words = [word for word in words if not word.startswith("model.")]
        method, _, base_type = method.partition(":")
        words += [f"model.from={base}", f"adapter.method={method}", "adapter.targets=all-linear", "adapter.rank=8"]
        words += [f"adapter.base={base_type}"] if base_type else []
    return trained(octet, folder, words, out)


def trained(octet, folder, words, out):
    try:
        run([octet, "train", *words, f"out={out}"], folder)
        rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if row.get("kind") == "step"]
        if len(losses) != STEPS or not losses[-1] < losses[0]:
            return out, f"{len(losses)} steps, loss {losses[0] if losses else None} to {losses[-1] if losses else None}"
        return out, f"{losses[0]:.2f} to {losses[-1]:.2f}"
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return None, outcome(error)


def make_sets(octet, folder):
    """Sets of the workloads: sentence pairs with masks, labelled lines, pairs of answers."""
    lines = [line for line in (folder / "text").read_text().splitlines() if len(line.split()) > 4]
    letters = sorted({letter for letter in "".join(lines).lower() if not letter.isspace()})
    (folder / "wordpiece").mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
    (folder / "wordpiece" / "tokenizer.json").write_text(json.dumps({
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece"},
        "added_tokens": [{"id": i, "content": word, "special": True} for i, word in enumerate(words[:5])],
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)}}}))
    (folder / "labelled.jsonl").write_text("".join(
        json.dumps({"text": line[:300], "label": "table" if "|" in line else "prose"}) + "\n" for line in lines))
    (folder / "pairs.jsonl").write_text("".join(
        json.dumps({"prompt": line[:60], "chosen": line[60:120], "rejected": line[60:120][::-1]}) + "\n"
        for line in lines if len(line) > 130))
    (folder / "template").write_text("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}")
    run([octet, "data", "bert", "--tokenizer", "wordpiece", "--length", "128", "--row", "128", "--blank-lines",
         "--out", "sentences", "text"], folder)
    run([octet, "data", "--tokenizer", "tokenizer", "--chat", "template", "--pairs", "--sequence-length", "128", "--out", "pairs",
         "pairs.jsonl"], folder)


def outcome(error):
    """What the program refuses by name, or a failure."""
    refused = str(error).startswith("octet: unsupported: ")
    return f"refused: {str(error)[20:220]}" if refused else f"failed: {str(error)[:200]}"


def generate(octet, folder, out, recipe, device, *options):
    try:
        text = run([octet, "generate", out, *options, "--ids", "5,17,42,7", "--max-tokens", "24", "--ignore-eos", "--temperature", "0",
                    "--recipe", recipe, "--device", device, "--json"], folder)
        return "ran" if text.strip() else "no text"
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return outcome(error)


def cases(octet, folder, options):
    def train_case(family, recipe):
        out, result = train(octet, folder, family, recipe, options.device, options.mesh)
        rows = [(family, "train", recipe, result)]
        if out and recipe == "bf16" and not options.mesh:
            rows += [(family, "generate", served, generate(octet, folder, out, served, options.device))
                     for served in SERVED[options.device]]
        return rows

    def adapter_case(family):
        base, result = train(octet, folder, family, "bf16", options.device, options.mesh)
        rows = [(family, "train", "bf16", result)]
        for method, recipe in itertools.product(options.adapters, options.recipes) if base else []:
            out, result = train(octet, folder, family, recipe, options.device, options.mesh, base, method)
            rows.append((family, f"{method} train", recipe, result))
            if not out or recipe not in SERVED[options.device]:
                continue
            rows.append((family, f"{method} merged", recipe, generate(octet, folder, out, recipe, options.device)))
            rows.append((family, f"{method} in a batch", recipe,
                         generate(octet, folder, base, recipe, options.device, "--adapter", f"own={out}")))
        return rows

    def workload_case(recipe):
        """BERT, a classifier that begins from it, and DPO of a language model, each from a model of the same recipe."""
        rest, mesh = common_settings(recipe, options.device, options.mesh), options.mesh.replace("=", "").replace(",", "_")
        small = ["model.layers=2", "model.hidden=256", "model.heads=4", "model.head_dim=64", "model.intermediate=512"]
        rows, bert = [], folder / f"bert_{recipe}_{mesh}"
        if {"bert", "classify"} & set(options.workloads):
            out, result = trained(octet, folder, ["workload=bert", *small, "data.train=sentences", *rest], bert)
            rows.append(("bert", "train", recipe, result))
            if out and "classify" in options.workloads:
                out, result = trained(octet, folder, ["workload=classify", f"model.from={bert}", "data.train=labelled.jsonl", *rest],
                                      folder / f"classify_{recipe}_{mesh}")
                rows.append(("classify", "train", recipe, result))
        if "dpo" in options.workloads:
            base, result = train(octet, folder, "llama", recipe, options.device, options.mesh)
            for method in ["", "lora"] if base else []:
                words = ["train.objective=dpo", f"model.from={base}", "data.train=pairs", *rest]
                words += [f"adapter.method={method}"] if method else []
                out, result = trained(octet, folder, words, folder / f"dpo_{method}_{recipe}_{mesh}")
                rows.append(("dpo " + method, "train", recipe, result))
        return rows

    if options.workloads:
        make_sets(octet, folder)
        return [(workload_case, recipe) for recipe in options.recipes]
    if options.adapters:
        return [(adapter_case, family) for family in options.families]
    return [(train_case, family, recipe) for family in options.families for recipe in options.recipes]


def measure(options):
    octet = pathlib.Path(options.octet).resolve()
    environment = os.environ.setdefault("OMP_NUM_THREADS", "2")
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").write_bytes((ROOT / "docs" / "results_gpu.md").read_bytes())
        run([octet, "tokenizer", "train", "--vocab-size", "512", "--out", "tokenizer", "text"], folder)
        run([octet, "data", "--tokenizer", "tokenizer", "--out", "corpus", "text"], folder)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for rows in pool.map(lambda case: case[0](*case[1:]), cases(octet, folder, options)):
                for family, kind, recipe, result in rows:
                    results.append({"family": family, "kind": kind, "recipe": recipe, "device": options.device,
                                    "mesh": options.mesh, "result": result})
                    if ": " in result or not options.quiet:
                        print(f"{family} {kind} {recipe} {options.device} {options.mesh}: {result}", flush=True)
    good = [r for r in results if r["result"] == "ran" or " to " in r["result"] and "steps" not in r["result"]]
    refused = [r for r in results if r["result"].startswith("refused")]
    print(f"{len(results)} runs, {len(good)} as promised, {len(refused)} refused by name ({options.device} {options.mesh}, "
          f"OMP_NUM_THREADS={environment})")
    pathlib.Path(options.json).write_text(json.dumps(results, indent=0))


def table(paths):
    """Rows by family: a column for every kind, recipe and mesh in the order in which they were run."""
    results = [row for path in paths for row in json.loads(pathlib.Path(path).read_text())]
    columns = list(dict.fromkeys((r["kind"], r["recipe"], r["mesh"]) for r in results))
    cells = {(r["family"], r["kind"], r["recipe"], r["mesh"]): r["result"].split(":")[0] for r in results}
    print(json.dumps({"columns": [{"name": "family"}] + [{"name": " ".join(filter(None, c))} for c in columns],
                      "rows": [[f] + [cells.get((f, *c), "") for c in columns] for f in FAMILIES]}, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet", nargs="?")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--mesh", default="", help="settings of parallel.*, as tensor=2,data=2")
    parser.add_argument("--families", type=str.split, default=FAMILIES, help="names with spaces between")
    parser.add_argument("--recipes", type=str.split, default=RECIPES)
    parser.add_argument("--adapters", type=str.split, default=[],
                        help="adapter.method, as lora, or with adapter.base, as lora:nf4, in place of whole models")
    parser.add_argument("--workloads", type=str.split, default=[], help="bert, classify, dpo in place of language modelling")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="print failures and the count only")
    parser.add_argument("--json", default="runs.json")
    parser.add_argument("--table", nargs="+")
    options = parser.parse_args()
    if options.table:
        return table(options.table)
    if not options.octet:
        parser.error("the program is missing: build/cuda/tools/octet")
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
