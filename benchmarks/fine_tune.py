#!/usr/bin/env python3
"""Fine-tunes a Hugging Face folder and serves the result, by the commands of docs/training.md, and prints its table.

    benchmarks/fine_tune.py build/program_cuda/tools/octet WORK TEXT            # one GPU, GPT-2 124M, a few minutes
    benchmarks/fine_tune.py build/program/tools/octet WORK TEXT --small         # CPUs, a small model, two minutes

TEXT is a file or a folder. A folder to start from is made of its first nineteen twentieths: a vocabulary and a pretrained
model. It is then fine-tuned on pairs, a line of the text as prompt, which is excluded from the loss, and the line behind
it as the answer. Pairs of the last twentieth are held out: their loss is measured before and after. On a GPU some steps of
configs/llama3_8b.yaml, from random weights, give its speed. All files are in WORK, which is made anew.
"""

import argparse
import json
import pathlib
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_FILE, MOST_TEXT = 2 << 20, 64 << 20  # bytes of a file, of all
SIZES = {  # vocabulary; settings of pretraining and of fine-tuning
    False: ("16384", "model.size=gpt2-124m model.vocab_size=50257 data.sequence_length=1024 train.micro_batch=16 "
            "precision.recipe=fp8-current",
            "data.sequence_length=1024 train.micro_batch=16 precision.recipe=fp8-current optimizer.lr=1e-4 "
            "optimizer.min_lr=1e-5"),
    True: ("2048", "model.size=gpt2-nano model.hidden=192 model.heads=4 data.sequence_length=128 train.micro_batch=8 "
           "precision.recipe=bf16 optimizer.lr=2e-3",
           "data.sequence_length=128 train.micro_batch=8 precision.recipe=bf16 optimizer.lr=1e-3 "
           "optimizer.min_lr=1e-4")}



def lines_of(path):
    """Lists of lines of the files of TEXT, the longest files left out."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())
    total = 0
    for file in files:
        if path.is_dir() and not 256 <= file.stat().st_size <= MOST_FILE:
            continue
        try:
            lines = file.read_bytes().decode("utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        total += file.stat().st_size
        if total > MOST_TEXT:
            return
        yield lines


def steps(prefix, settings, epochs, low, high):
    """As many as go through a set `epochs` times, within bounds."""
    sizes = dict(word.split("=") for word in settings.split())
    tokens = pathlib.Path(f"{prefix}.bin").stat().st_size // 2  # ids of 16 bits
    a_step = int(sizes["data.sequence_length"]) * int(sizes["train.micro_batch"])
    return f"train.steps={min(max(epochs * tokens // a_step, low), high)}"


def write_texts(path, work):
    """train.jsonl, for the folder; pairs.jsonl and held_out.jsonl, of prompt and text. Returns held-out pairs."""
    texts, pairs, held_out = [], [], []
    for lines in lines_of(path):
        cut = len(lines) * 19 // 20
        texts.append({"text": "\n".join(lines[:cut])})
        for part, out in ((lines[:cut], pairs), (lines[cut:], held_out)):
            full = [line.strip() for line in part if len(line.strip()) > 12]
            out += [{"prompt": f"Line: {a}\nNext:", "text": f" {b}"} for a, b in zip(full[::2], full[1::2])]
    for name, rows in {"train": texts, "pairs": pairs, "held_out": held_out}.items():
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return held_out


class Run:
    def __init__(self, octet, work):
        self.octet, self.work, self.log = octet, work, work / "log.txt"

    def __call__(self, *words):
        """Output of `octet words`, whose messages go to the log."""
        words = [str(word) for part in words for word in (part.split() if isinstance(part, str) else [part])]
        with open(self.log, "a") as log:
            print("octet", *words, file=log, flush=True)
            done = subprocess.run([self.octet, *words], stdout=subprocess.PIPE, stderr=log, text=True)
            log.write(done.stdout)
        if done.returncode != 0:
            raise SystemExit(f"octet {' '.join(words)}: status {done.returncode}; {self.log} ends:\n"
                             + "\n".join(self.log.read_text().splitlines()[-4:]))
        return done.stdout

    def train(self, words, out):
        """Seconds, and what the last line says of the speed and memory."""
        begin = time.monotonic()
        said = self("train", words, f"out={out}")
        found = re.search(r"training loss ([\d.]+).*median (\d+) tokens/s.*planned (\d+) bytes, allocated (\d+)", said)
        return {"seconds": time.monotonic() - begin, "loss": float(found[1]), "rate": int(found[2]),
                "planned": int(found[3]), "allocated": int(found[4])}

    def eval(self, model):
        return json.loads(self("eval", model, f"--data {self.work}/held_out --json"))["loss"]

    def serve(self, model, prompt):
        """The answer of `octet serve` to one request: its text, how it ended, and seconds of start and answer."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        begin = time.monotonic()
        with open(self.log, "a") as log:
            server = subprocess.Popen([self.octet, "serve", str(model), "--port", str(port)], stderr=log, stdout=log)
        try:
            body = {"prompt": prompt, "max_tokens": 60, "temperature": 0}
            while True:
                asked = time.monotonic()
                try:
                    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
                    with urllib.request.urlopen(request) as reply:
                        choice = json.load(reply)["choices"][0]
                    break
                except (urllib.error.URLError, ConnectionError) as error:  # not yet there, or 503 while it loads
                    if server.poll() is not None or isinstance(error, urllib.error.HTTPError) and error.code != 503:
                        raise SystemExit(f"octet serve {model}: {error}; see {self.log}")
                    time.sleep(0.1)
            return choice["text"], choice["finish_reason"], asked - begin, time.monotonic() - asked
        finally:
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--no-llama", action="store_true", help="leave configs/llama3_8b.yaml out")
    args = parser.parse_args()
    begin = time.monotonic()
    octet, work = args.octet.resolve(), args.work.resolve()
    vocabulary, pretrain, tune = SIZES[args.small]
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    run = Run(octet, work)
    held_out = write_texts(args.text, work)
    run(f"tokenizer train --vocab-size {vocabulary} --out {work}/tokenizer {work}/train.jsonl")
    run(f"data --tokenizer {work}/tokenizer --out {work}/text {work}/train.jsonl")
    common = "eval.interval=0 checkpoint.interval=0 checkpoint.best=false log.interval=10"
    least, most = (200, 250) if args.small else (200, 1500)
    made = run.train(f"{pretrain} {steps(work / 'text', pretrain, 4, least, most)} data.train={work}/text {common} "
                     "checkpoint.content=weights", work / "pretrained")
    folder = work / "pretrained"

    # What docs/training.md shows: pairs, plan, training, evaluation, serving.
    for name in ("pairs", "held_out"):
        run(f"data --tokenizer {work}/tokenizer --prompt-key prompt --out {work}/{name} {work}/{name}.jsonl")
    settings = (f"model.from={folder} data.train={work}/pairs data.validation={work}/held_out data.separate_documents=true {tune} "
                f"{steps(work / 'pairs', tune, 3, least // 2, most)} optimizer.warmup_steps=20 {common}")
    before = run.eval(folder)
    tuned = run.train(settings, work / "tuned")
    after = run.eval(work / "tuned")
    prompt = held_out[0]["prompt"]
    first = run.serve(folder, prompt)
    text, ended, started, answered = run.serve(work / "tuned", prompt)
    memory = f"{tuned['planned'] / 1e9:.2f} GB planned, {tuned['allocated'] / 1e9:.2f} allocated"
    rows = [("pretraining of the folder to start from", f"{made['seconds']:.0f} s",
             f"{made['rate']:,} tokens/s, training loss {made['loss']:.3f}"),
            ("loss of held-out answers, before", "", f"{before:.3f}"),
            ("fine-tuning", f"{tuned['seconds']:.0f} s", f"{tuned['rate']:,} tokens/s, {memory}"),
            ("loss of held-out answers, after", "", f"{after:.3f}"),
            ("`octet serve`, until it is ready", f"{started:.1f} s", ""),
            ("one answer over HTTP, greedy", f"{answered:.2f} s",
             f"ends by `{ended}`, before fine-tuning by `{first[1]}`")]
    if not args.small and not args.no_llama:
        try:
            words = f"{ROOT}/configs/llama3_8b.yaml data.train={work}/text data.validation= train.steps=4 train.global_batch=4"
            llama = run.train(f"{words} {common}", work / "llama")
            rows.append(("`configs/llama3_8b.yaml`, 4 steps", f"{llama['seconds']:.0f} s",
                         f"{llama['rate']:,} tokens/s, {llama['planned'] / 1e9:.1f} GB planned, "
                         f"{llama['allocated'] / 1e9:.1f} allocated"))
        except SystemExit as error:
            rows.append(("`configs/llama3_8b.yaml`, 4 steps", "", str(error).splitlines()[-1]))
        shutil.rmtree(work / "llama", ignore_errors=True)
    print("| step | time | result |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    (work / "rows.json").write_text(json.dumps(rows, indent=0))  # of the claim fine_tune, docs/results/data/runs.json
    print(f"\nprompt    {prompt!r}\nbefore    {first[0]!r}\nafter     {text!r}\nreference {held_out[0]['text']!r}")
    print(f"all: {time.monotonic() - begin:.0f} s; log: {run.log}")
    if after >= before:
        raise SystemExit("fine-tuning has not lowered the loss of held-out answers")


if __name__ == "__main__":
    main()
