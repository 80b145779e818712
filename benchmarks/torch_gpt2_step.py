#!/usr/bin/env python3
"""Times one training step of GPT-2 124M in PyTorch on the CPU: the peer of `octet-bench train-step`.

Random tokens, batch created before timing; a step is forward, backward, clipping at 1.0 and AdamW. bf16 is
autocast over float32 weights, as nanoGPT trains. Prints one line, and with --json FILE writes the same figures.
"""

import argparse
import json
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(C, dim=2)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(B, T, C))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocab=50257, positions=1024, width=768, layers=12, heads=12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)  # tied head
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def measure(args):
    torch.manual_seed(1337)
    if args.threads:
        torch.set_num_threads(args.threads)
    model = GPT2()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    try:
        optimizer, kind = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True), "fused"
    except (RuntimeError, TypeError):
        optimizer, kind = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95)), "foreach"
    run = torch.compile(model) if args.compile else model
    ids = torch.randint(0, 50257, (args.batch, args.length + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    seconds = []
    for _ in range(args.warmup + args.steps):
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = run(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    seconds = seconds[args.warmup :]
    median = statistics.median(seconds)
    return {
        "program": f"PyTorch {torch.__version__} {'torch.compile' if args.compile else 'eager'}",
        "dtype": args.dtype,
        "batch": args.batch,
        "length": args.length,
        "threads": torch.get_num_threads(),
        "optimizer": kind,
        "steps": args.steps,
        "median_ms": median * 1e3,
        "min_ms": min(seconds) * 1e3,
        "tokens_per_second": args.batch * args.length / median,
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "last_loss": loss.item(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="through torch.compile (needs a C++ compiler)")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's default")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    result = measure(args)
    print(
        "{program} {dtype} B {batch} T {length}: {tokens_per_second:.1f} tokens/s, median {median_ms:.1f} ms, "
        "min {min_ms:.1f} ms, {threads} threads, AdamW {optimizer}, max RSS {gib:.2f} GiB".format(
            gib=result["max_rss_bytes"] / 2**30, **result
        )
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
