#!/usr/bin/env python3
"""Encoders of BERT's kind with random weights: `octet bench encode` packed and padded, and PyTorch on the same sizes.

  benchmarks/encoder.py OCTET                    MiniLM's size (6 layers of 384), texts of 128 tokens, on CPUs
  benchmarks/encoder.py OCTET --size bert-large --device cuda --recipe fp8-current --shortest 32 --longest 384 \
      --requests 8000 --max-step-tokens 16384 --no-torch

The two programs run in turn, --rounds times; the medians and the ratio are printed. PyTorch (where it is installed) runs
scaled_dot_product_attention and linears, in bfloat16 where the recipe is bf16, else in float32, texts of one length a batch,
so that nothing of it is padding.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

SIZES = {  # layers, hidden, heads, intermediate
    "minilm": (6, 384, 12, 1536),
    "bert-base": (12, 768, 12, 3072),
    "bert-large": (24, 1024, 16, 4096),
}


def write_config(folder, size):
    layers, hidden, heads, inner = SIZES[size]
    config = {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522, "hidden_size": hidden,
              "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
              "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(config))


def run_octet(octet, folder, args, padded):
    command = [octet, "bench", "encode", folder, "--random-weights", "--device", args.device, "--recipe", args.recipe,
               "--shortest", args.shortest, "--longest", args.longest, "-n", args.requests, "--repeats", 3,
               "--threads", args.threads, "--max-step-tokens", args.max_step_tokens]
    line = subprocess.run([*map(str, command), *(["--padded"] if padded else [])], check=True, capture_output=True,
                          text=True).stdout.strip()
    print(line)
    return float(re.search(r"([\d.]+) tokens/s", line)[1])


def torch_rate(args):
    """Tokens a second of the same model in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.bfloat16 if args.recipe == "bf16" else torch.float32)
    torch.manual_seed(1)
    layers, hidden, heads, inner = SIZES[args.size]

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = self.qkv(x).view(batch, length, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, hidden)
            x = self.norm1(x + self.out(mixed))
            return self.norm2(x + self.down(functional.gelu(self.up(x))))

    tokens, places, norm = nn.Embedding(30522, hidden), nn.Embedding(512, hidden), nn.LayerNorm(hidden)
    stack = nn.Sequential(*[Layer() for _ in range(layers)])
    length = args.longest
    batch = max(1, args.max_step_tokens // length)
    ids = torch.randint(0, 30522, (batch, length))

    def step():
        return functional.normalize(stack(norm(tokens(ids) + places(torch.arange(length)))).mean(1), dim=1)

    with torch.inference_mode():
        step()
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < 3:
            step()
            count += 1
        return count * batch * length / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet")
    parser.add_argument("--size", choices=SIZES, default="minilm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--recipe", default="fp32")
    parser.add_argument("--shortest", type=int, default=128)
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--max-step-tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    rates = {"packed": [], "padded": [], "torch": []}
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        write_config(folder, args.size)
        for _ in range(args.rounds):
            rates["packed"].append(run_octet(args.octet, folder, args, False))
            if args.shortest < args.longest:
                rates["padded"].append(run_octet(args.octet, folder, args, True))
            if not args.no_torch:
                rates["torch"].append(torch_rate(args))
                print(f"torch: {rates['torch'][-1]:.0f} tokens/s")
    packed = statistics.median(rates["packed"])
    for other in ("padded", "torch"):
        if rates[other]:
            print(f"packed over {other}: {packed / statistics.median(rates[other]):.2f}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
