#!/usr/bin/env python3
"""BERT of two layers, pretrained by Octet and by transformers on the same batches from the same weights: masked accuracy on
held-out text, and sequences a second: of the median step, and of the tenth percentile, which other programs on the cores move
less. In turn, a round a seed; needs torch and transformers.

    benchmarks/bert_pretraining.py PROGRAM TEXT --work out/bert_pretraining

TEXT is a folder of train.jsonl.zst and validation.jsonl.zst, or .jsonl, with a document a line under "text". Both programs
train in float32 with AdamW, without dropout; losses of the first steps are compared, so that the batches are the same.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import struct
import subprocess
import time

import numpy
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForPreTraining

WORDS, HIDDEN, LENGTH, MASKED, BATCH, WARMUP, RATE = 4000, 128, 128, 20, 16, 50, 2e-3
MASK64 = (1 << 64) - 1


def mix64(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK64
    return value ^ (value >> 31)


def philox_words(seed, stream, count):
    """The first 32-bit words of the host stream of src/base/rng.h."""
    words = []
    for block in range((count + 3) // 4):
        a, b, c, d = block & 0xFFFFFFFF, block >> 32, stream & 0xFFFFFFFF, stream >> 32
        key = mix64(seed + 0x9E3779B97F4A7C15 & MASK64)
        low, high = key & 0xFFFFFFFF, key >> 32
        for _ in range(10):
            first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
            a, b, c, d = (second >> 32) ^ b ^ low, second & 0xFFFFFFFF, (first >> 32) ^ d ^ high, first & 0xFFFFFFFF
            low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
        words += [a, b, c, d]
    return words[:count]


def permutation(count, seed, stream):
    """IndexPermutation of src/io/dataset.h, as a list."""
    bits = 3
    while 1 << (2 * bits) < count:
        bits += 1
    words = philox_words(seed, stream, 12)
    keys, half, places = [words[2 * i] << 32 | words[2 * i + 1] for i in range(6)], (1 << bits) - 1, []
    for value in range(count):
        while True:
            left, right = value >> bits, value & half
            for key in keys:
                left, right = right, left ^ (mix64(right + key & MASK64) & half)
            value = left << bits | right
            if value < count:
                break
        places.append(value)
    return places


def read_set(prefix):
    """The sequences of a set of `octet data bert` (src/io/bert_set.h), the longest first, as rows of one hold them."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    kind, count = index[17], struct.unpack_from("<Q", index, 18)[0]
    sizes = numpy.frombuffer(index, numpy.int32, count, 34)
    values = numpy.fromfile(f"{prefix}.bin", {4: numpy.int32, 8: numpy.uint16}[kind]).astype(numpy.int64)
    sequences = []
    for document in numpy.split(values, numpy.cumsum(sizes)[:-1]):
        n = document[1]
        m = (len(document) - 2 - 2 * n) // 2
        ids, types, places, labels = numpy.split(document[2:], [n, 2 * n, 2 * n + m])
        sequences.append((ids, types, places, labels, 1 - document[0]))
    return sorted(sequences, key=lambda s: -len(s[0]))


def batch_of(sequences):
    shape = (len(sequences), LENGTH)
    ids, types, mask = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    labels = torch.full(shape, -100)
    for row, (own, kinds, places, words, _) in enumerate(sequences):
        ids[row, :len(own)], types[row, :len(own)] = torch.from_numpy(own), torch.from_numpy(kinds)
        mask[row, :len(own)] = 1
        labels[row, torch.from_numpy(places)] = torch.from_numpy(words)
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask, "labels": labels,
            "next_sentence_label": torch.tensor([int(s[4]) for s in sequences])}


def speeds(seconds):
    """Sequences a second of the median step and of the tenth percentile."""
    return BATCH / statistics.median(seconds), BATCH / statistics.quantiles(seconds, n=10)[0]


def run_transformers(args, folder, seed):
    model = BertForPreTraining.from_pretrained(folder)
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.01},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-6)
    train, order, losses, seconds = read_set(args.work / "set_train"), [], [], []
    model.train()
    for step in range(args.steps):
        began = time.perf_counter()
        while len(order) < (step + 1) * BATCH:
            order += permutation(len(train), seed, len(order) // len(train))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / (WARMUP + 1))
        loss = model(**batch_of([train[i] for i in order[step * BATCH:(step + 1) * BATCH]])).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    model.eval()
    held, right, counted = read_set(args.work / "set_val"), 0, 0
    with torch.no_grad():
        for first in range(0, len(held), BATCH):
            batch = batch_of(held[first:first + BATCH])
            likeliest = model(**batch).prediction_logits.argmax(-1)
            counts = batch["labels"] >= 0
            right, counted = right + int((likeliest == batch["labels"])[counts].sum()), counted + int(counts.sum())
    return losses, right / counted, speeds(seconds)


def run_octet(args, folder, seed):
    out = args.work / f"octet_{seed}"
    shutil.rmtree(out, ignore_errors=True)
    words = [args.octet, "train", "workload=bert", f"model.from={folder}", f"data.train={args.work / 'set_train'}",
             f"data.validation={args.work / 'set_val'}", f"data.sequence_length={LENGTH}", "data.row_sequences=1",
             f"data.predictions={MASKED}", f"train.micro_batch={BATCH}", f"train.steps={args.steps}", f"train.seed={seed}",
             "train.device=cpu", f"train.threads={args.threads}", "model.dropout=0", "precision.recipe=fp32",
             "optimizer.name=adamw", f"optimizer.lr={RATE}", "optimizer.schedule=constant",
             f"optimizer.warmup_steps={WARMUP}", "optimizer.weight_decay=0.01", "eval.interval=0", "log.interval=1",
             "checkpoint.interval=0", "checkpoint.content=weights", f"out={out}"]
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    steps = [line for line in log if line["kind"] == "step"]
    accuracy = [line["masked_accuracy"] for line in log if line["kind"] == "eval"][-1]
    return [s["loss"] for s in steps], accuracy, speeds([s["seconds"] for s in steps])


def prepare(args):
    """Vocabulary and sets, once."""
    if (args.work / "set_val.json").exists():
        return
    args.work.mkdir(parents=True, exist_ok=True)
    texts = {split: next(args.text.glob(f"{split}.jsonl*")) for split in ("train", "validation")}
    read = ["zstd", "-dc"] if texts["train"].suffix == ".zst" else ["cat"]
    lines = subprocess.run([*read, str(texts["train"])], check=True, capture_output=True, text=True).stdout.splitlines()
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator([json.loads(line)["text"] for line in lines], vocab_size=WORDS, show_progress=False)
    (args.work / "tokenizer").mkdir(exist_ok=True)
    tokenizer.save(str(args.work / "tokenizer/tokenizer.json"))
    for name, split, duplicates in (("train", "train", 5), ("val", "validation", 1)):
        subprocess.run([args.octet, "data", "bert", "--tokenizer", args.work / "tokenizer", "--length", str(LENGTH), "--row",
                        str(LENGTH), "--no-packing", "--most-masked", str(MASKED), "--duplicates", str(duplicates), "--out",
                        args.work / f"set_{name}", texts[split]], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/bert_pretraining"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.work = args.work.resolve()
    torch.set_num_threads(args.threads)
    prepare(args)
    vocabulary = json.loads((args.work / "set_train.json").read_text())["vocab_size"]
    config = BertConfig(vocab_size=vocabulary, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=4 * HIDDEN, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)
    print(f"{len(read_set(args.work / 'set_train'))} sequences, vocabulary {vocabulary}, {args.steps} steps of {BATCH}")
    for seed in range(1, args.rounds + 1):
        torch.manual_seed(seed)
        folder = args.work / f"begin_{seed}"
        BertForPreTraining(config).save_pretrained(folder)
        shutil.copy(args.work / "tokenizer/tokenizer.json", folder)
        theirs, ours = run_transformers(args, folder, seed), run_octet(args, folder, seed)
        apart = max(abs(a - b) for a, b in zip(theirs[0][:10], ours[0][:10]))
        if apart > 1e-3:
            raise SystemExit(f"seed {seed}: losses of the first ten steps are {apart:.2g} apart: not the same batches")
        print(f"seed {seed}: losses of ten steps {apart:.1e} apart; last {theirs[0][-1]:.4f} {ours[0][-1]:.4f}; masked "
              f"accuracy transformers {100 * theirs[1]:.2f} %, Octet {100 * ours[1]:.2f} %; sequences/s of the median step "
              f"{theirs[2][0]:.1f}, {ours[2][0]:.1f}: {ours[2][0] / theirs[2][0]:.2f} times as fast; of the tenth percentile "
              f"{theirs[2][1]:.1f}, {ours[2][1]:.1f}: {ours[2][1] / theirs[2][1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
