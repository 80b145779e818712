#!/usr/bin/env python3
"""Adapters on one GPU: training LoRA beside PEFT, and decoding of many adapters in one batch beside the bare model.

    benchmarks/adapters.py build/cuda/tools/octet WORK TEXT --json adapters.json [--peft] [--only train|serve|zipf] [--limit SECONDS]
    benchmarks/adapters.py build/test/tools/octet WORK - --only zipf --tiny --adapters 100 --slots 8 -n 200

Training: a Llama-2-7B of random weights, made in WORK (13.5 GB; needs torch), rank 16 on all linears, sequences of 4,096
tokens of the file TEXT. Serving: a Llama-3-8B of random weights, prompts of 1,000 tokens, adapters of random weights.
zipf: rank 16 on q and v, requests that draw one of --adapters by Zipf's law; the time between tokens with --slots of them on
the device over that with all of them there. --tiny: a small Llama on the CPU.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent
RANK, STEPS, SKIP, MICRO_BATCHES = 16, 10, 3, 4
SHAPES = {"self_attn.q_proj": (4096, 4096), "self_attn.k_proj": (1024, 4096), "self_attn.v_proj": (1024, 4096),
          "self_attn.o_proj": (4096, 4096), "mlp.gate_proj": (14336, 4096), "mlp.up_proj": (14336, 4096),
          "mlp.down_proj": (4096, 14336)}  # of Llama-3-8B


TINY_SHAPES = {"self_attn.q_proj": (256, 256), "self_attn.v_proj": (128, 256)}
TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu"}


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


def random_bf16(elements, chance):
    """Of either sign and 2^-6 to 2^-7, as bytes."""
    mask, exponent = (int.from_bytes(bytes(pair) * elements, "little") for pair in ((0x7F, 0x80), (0x80, 0x3C)))
    return (int.from_bytes(chance.randbytes(2 * elements), "little") & mask | exponent).to_bytes(2 * elements, "little")


def make_adapter(folder, seed, shapes=SHAPES, layers=32):
    folder.mkdir(parents=True, exist_ok=True)
    chance, header, parts, at = random.Random(seed), {}, [], 0
    for layer in range(layers):
        for name, (rows, columns) in shapes.items():
            for letter, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                parts.append(random_bf16(shape[0] * shape[1], chance))
                header[f"base_model.model.model.layers.{layer}.{name}.lora_{letter}.weight"] = {
                    "dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(parts[-1])]}
                at += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "adapter_model.safetensors").write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": RANK, "lora_alpha": 16, "base_model_name_or_path": "llama3-8b", "task_type": "CAUSAL_LM",
        "target_modules": [name.split(".")[1] for name in shapes]}))
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


def zipf(octet, work, options, slots):
    """Time between tokens where each request draws its adapter: every name is an adapter of its own, of 64 folders at most."""
    folders = min(options.adapters, 64)
    for a in range(folders):
        if not (work / f"zipf_{a}" / "adapter_config.json").exists():
            make_adapter(work / f"zipf_{a}", a, *((TINY_SHAPES, 4) if options.tiny else
                                                  ({name: SHAPES[name] for name in TINY_SHAPES}, 32)))
    if options.tiny:
        (work / "tiny").mkdir(exist_ok=True)
        (work / "tiny" / "config.json").write_text(json.dumps(TINY))
    model = [work / "tiny", "--device", "cpu", "--recipe", "bf16"] if options.tiny else [
        "llama3-8b", "--recipe", "fp8-current", "--kv-cache", "e4m3"]
    prompt, answer = (32, 32) if options.tiny else (1000, 128)
    words = [word for a in range(options.adapters) for word in ("--adapter", f"a{a:04}={work / f'zipf_{a % folders}'}")]
    report = work / f"zipf_{options.adapters}_{slots}.json"
    run(octet, "bench", "throughput", *model, "--random-weights", "-i", prompt, "-o", answer, "-n", options.requests, "--concurrency",
        options.texts, "--max-sequences", options.texts, "--max-adapters", slots, "--adapter-zipf", 1, "--json", report, *words)
    measured = json.loads(report.read_text())
    between = measured["inter_token_seconds"]
    return {"what": f"{options.adapters} adapters, {slots} on the device, {options.texts} texts", "report": measured,
            "itl_ms": 1000 * between["p50"], "itl_p99_ms": 1000 * between["p99"],
            "output_tokens_per_second": measured["output_tokens_per_second"]}


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
    parser.add_argument("--only", choices=["train", "serve", "zipf"])
    parser.add_argument("--adapters", type=int, default=1000, help="zipf: adapters that requests draw")
    parser.add_argument("--slots", type=int, default=64, help="zipf: of them on the device at once")
    parser.add_argument("--texts", type=int, default=64, help="zipf: requests in flight")
    parser.add_argument("-n", "--requests", type=int, default=2000, help="zipf: requests")
    parser.add_argument("--tiny", action="store_true", help="zipf: a small model on the CPU")
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

    if options.only in (None, "train"):
        run(options.octet, "tokenizer", "train", "--vocab-size", 4096, "--out", work / "tokenizer", options.text)
        run(options.octet, "data", "--tokenizer", work / "tokenizer", "--out", work / "set", options.text)
        base = work / "base"
        run(sys.executable, ROOT / "random_llama.py", base, "--tokenizer", work / "tokenizer", "--vocab", 32000)
        for recipe, method, micro_batch in (("fp8-current", "lora", 1), ("fp8-current", "lora", 2), ("bf16", "lora", 1),
                                            ("fp8-current", "dora", 1)):
            measure(f"{method} {recipe}", train, options.octet, work, base, recipe, method, micro_batch)
        if options.peft:
            measure("PEFT", train_peft, base)
    if options.only in (None, "zipf"):
        everything = measure("all on the device", zipf, options.octet, work, options, options.adapters)
        some = measure("some on the device", zipf, options.octet, work, options, options.slots)
        if everything and some and "error" not in {**everything, **some}:
            print(f"p99 between tokens over that of all on the device: {some['itl_p99_ms'] / everything['itl_p99_ms']:.3f}")
    if options.only in (None, "serve"):
        for a in range(64):
            make_adapter(work / f"adapter_{a}", a)
        for texts, counts in ((256, (16, 1)), (64, (64,)), (1, (1,))):
            bare = measure("bare", serve, options.octet, work, texts, 0, None)
            for count in counts:
                measure(f"{texts}/{count}", serve, options.octet, work, texts, count, bare)


if __name__ == "__main__":
    sys.exit(main())
