#!/usr/bin/env python3
"""Adapters on one GPU: training LoRA beside PEFT, and decoding of many adapters in one batch beside the bare model.

    benchmarks/adapters.py build/cuda/tools/octet WORK TEXT --json adapters.json [--peft] [--only train|serve] [--limit SECONDS]

Training: a Llama-2-7B of random weights, made in WORK (13.5 GB; needs torch), rank 16 on all linears, sequences of 4,096
tokens of the file TEXT. Serving: a Llama-3-8B of random weights, prompts of 1,000 tokens, adapters of random weights.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent
RANK, STEPS, SKIP, MICRO_BATCHES = 16, 10, 3, 4
SHAPES = {"self_attn.q_proj": (4096, 4096), "self_attn.k_proj": (1024, 4096), "self_attn.v_proj": (1024, 4096),
          "self_attn.o_proj": (4096, 4096), "mlp.gate_proj": (14336, 4096), "mlp.up_proj": (14336, 4096),
          "mlp.down_proj": (4096, 14336)}  # of Llama-3-8B


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError((done.stderr or done.stdout).strip()[-300:])
    return done.stdout


def train(octet, work, base, recipe, method, micro_batch):
    out = work / f"{method}_{recipe}_{micro_batch}"
    run(octet, "train", f"model.from={base}", f"adapter.method={method}", f"adapter.rank={RANK}", "adapter.alpha=32",
        f"data.train={work / 'set'}", "data.sequence_length=4096", f"train.micro_batch={micro_batch}",
        f"train.global_batch={MICRO_BATCHES}", f"train.steps={STEPS}", f"precision.recipe={recipe}", "train.device=cuda",
        "eval.interval=0", "checkpoint.interval=0", "log.interval=1", "optimizer.lr=1e-4", "optimizer.warmup_steps=2", f"out={out}")
    steps = [row for row in map(json.loads, (out / "log.jsonl").read_text().splitlines()) if row.get("kind") == "step"]
    return {"what": f"train {method} {recipe}, {micro_batch} sequences a micro-batch",
            "tokens_per_second": statistics.median(row["tokens_per_second"] for row in steps[SKIP:]),
            "loss": [steps[0]["loss"], steps[-1]["loss"]]}


def train_peft(base):
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, device_map="cuda", attn_implementation="sdpa")
    model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(MICRO_BATCHES):
            ids = torch.randint(0, 32000, (1, 4096), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                (model(input_ids=ids, labels=ids).loss / MICRO_BATCHES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return {"what": f"PEFT {peft.__version__}, torch {torch.__version__}, bf16, sdpa, 1 sequence a micro-batch",
            "tokens_per_second": MICRO_BATCHES * 4096 / statistics.median(times[2:]),
            "peak_bytes": torch.cuda.max_memory_allocated()}


def make_adapter(folder, seed):
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(32):
        for name, (rows, columns) in SHAPES.items():
            at = f"base_model.model.model.layers.{layer}.{name}.lora_"
            tensors[at + "A.weight"] = (torch.randn(RANK, columns, device="cuda") * 0.02).to(torch.bfloat16).cpu()
            tensors[at + "B.weight"] = (torch.randn(rows, RANK, device="cuda") * 0.02).to(torch.bfloat16).cpu()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": RANK, "lora_alpha": 16, "base_model_name_or_path": "llama3-8b", "task_type": "CAUSAL_LM",
        "target_modules": [name.split(".")[1] for name in SHAPES]}))
    return folder


def serve(octet, work, texts, adapters, base):
    """`adapters` adapters of `texts` requests at once; the time between tokens, and its share of the bare model's."""
    words = [word for a in range(adapters) for word in ("--adapter", f"a{a}={work / f'adapter_{a}'}")]
    report = work / f"serve_{texts}_{adapters}.json"
    run(octet, "bench", "throughput", "llama3-8b", "--random-weights", "--recipe", "fp8-current", "--kv-cache", "e4m3", "-i", 1000,
        "-o", 128, "-n", texts, "--max-sequences", texts, "--json", report, *words)
    measured = json.loads(report.read_text())
    row = {"what": f"{texts} texts, {adapters} adapters", "report": measured, "itl_ms": itl(measured),
           "output_tokens_per_second": measured["output_tokens_per_second"]}
    if base:
        row["over the bare model"] = itl(base["report"]) / itl(measured)
    return row


def itl(report):
    """ms between tokens: the median of all requests."""
    return 1000 * report["inter_token_seconds"]["p50"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, default="adapters.json")
    parser.add_argument("--peft", action="store_true")
    parser.add_argument("--only", choices=["train", "serve"])
    parser.add_argument("--limit", type=float, default=1e9, help="begin nothing after so many seconds")
    options = parser.parse_args()
    begin, rows, work = time.time(), [], options.work
    work.mkdir(parents=True, exist_ok=True)

    def measure(name, function, *arguments):
        if time.time() - begin > options.limit:
            return None
        try:
            row = function(*arguments)
        except (RuntimeError, KeyError, ImportError) as error:
            row = {"what": name, "error": str(error)}
        rows.append(row)
        print(f"{time.time() - begin:.0f} s:", json.dumps({k: v for k, v in row.items() if k != "report"}), flush=True)
        options.json.write_text(json.dumps(rows))
        return row

    if options.only != "serve":
        run(options.octet, "tokenizer", "train", "--vocab-size", 4096, "--out", work / "tokenizer", options.text)
        run(options.octet, "data", "--tokenizer", work / "tokenizer", "--out", work / "set", options.text)
        base = work / "base"
        run(sys.executable, ROOT / "random_llama.py", base, "--tokenizer", work / "tokenizer", "--vocab", 32000)
        for recipe, method, micro_batch in (("fp8-current", "lora", 1), ("fp8-current", "lora", 2), ("bf16", "lora", 1),
                                            ("fp8-current", "dora", 1)):
            measure(f"{method} {recipe}", train, options.octet, work, base, recipe, method, micro_batch)
        if options.peft:
            measure("PEFT", train_peft, base)
    if options.only != "train":
        for a in range(64):
            make_adapter(work / f"adapter_{a}", a)
        for texts, counts in ((256, (16, 1)), (64, (64,)), (1, (1,))):
            bare = measure("bare", serve, options.octet, work, texts, 0, None)
            for count in counts:
                measure(f"{texts}/{count}", serve, options.octet, work, texts, count, bare)


if __name__ == "__main__":
    sys.exit(main())
