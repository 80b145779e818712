#!/usr/bin/env python3
"""Speed of BERT-large's pretraining step on one GPU: packed rows of 512 tokens, LAMB, dropout of 0.1.

    benchmarks/bert_step.py build/cuda/tools/octet WORK TEXT --settings model.dropout_bits=8 --json bert.json

TEXT is what `octet data bert` reads, of JSON lines (plain, .gz or .zst) with "text". The vocabulary is made here: the 30,000 most
frequent words of TEXT and its letters.
"""

import argparse
import collections
import json
import pathlib
import re
import statistics
import subprocess
import sys

STEPS, SKIP, ROWS = 12, 4, 48


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit((done.stderr or done.stdout).strip()[-400:])
    return done.stdout


def write_vocabulary(folder, text):
    data = subprocess.run(["zstd", "-dc", text], capture_output=True, check=True).stdout if text.suffix == ".zst" else text.read_bytes()
    counts = collections.Counter()
    for line in data.decode().splitlines():
        counts.update(re.findall(r"\w+|[^\w\s]", json.loads(line)["text"].lower()))
    letters = sorted({letter for word in counts for letter in word})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
    words += [word for word, _ in counts.most_common(30000) if len(word) > 1]
    words = list(dict.fromkeys(words))[:30522]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece"},
        "added_tokens": [{"id": i, "content": word, "special": True} for i, word in enumerate(words[:5])],
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)}}}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--recipes", type=str.split, default=["fp8-current", "bf16"])
    parser.add_argument("--settings", type=str.split, default=[], help="more of octet train, such as model.dropout_bits=8")
    parser.add_argument("--json", type=pathlib.Path, default="bert.json")
    options = parser.parse_args()
    work, rows = options.work, []
    write_vocabulary(work / "vocabulary", options.text)
    print(run(options.octet, "data", "bert", "--tokenizer", work / "vocabulary", "--duplicates", 4, "--out", work / "set", options.text))
    for recipe in options.recipes:
        out = work / recipe
        run(options.octet, "train", "workload=bert", "model.size=bert-large", "model.vocab_size=30522", f"data.train={work / 'set'}",
            f"train.micro_batch={ROWS}", f"train.global_batch={ROWS}", f"train.steps={STEPS}", f"precision.recipe={recipe}",
            "train.device=cuda", "eval.interval=0", "checkpoint.interval=0", "log.interval=1", f"out={out}", *options.settings)
        steps = [row for row in map(json.loads, (out / "log.jsonl").read_text().splitlines()) if row.get("kind") == "step"][SKIP:]
        middle = {key: statistics.median(row[key] for row in steps) for key in ("seconds", "sequences_per_second", "data_seconds", "sequences")}
        rows.append({"recipe": recipe, "step_ms": 1000 * middle["seconds"], "sequences_per_second": middle["sequences_per_second"],
                     "sequences": middle["sequences"], "data_ms": 1000 * middle["data_seconds"], "loss": [steps[0]["loss"], steps[-1]["loss"]]})
        print(json.dumps(rows[-1]), flush=True)
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    sys.exit(main())
