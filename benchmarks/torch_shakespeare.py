#!/usr/bin/env python3
"""nanoGPT's small character-level setting in PyTorch: the reference for configs/shakespeare_char.yaml.

4 layers, 4 heads, 128 wide, context 64, batch 12, 2,000 steps, no dropout, no biases, AdamW with decay 0.1 on all
matrices. Every 250 steps it prints the loss over the whole validation set in windows of 64, and the estimate over 20
random batches that nanoGPT prints.
"""

import argparse
import math
import statistics

import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, STEPS, WARMUP = 4, 4, 128, 64, 12, 2000, 100


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return functional.layer_norm(x, (WIDTH,), self.weight, None, 1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(C, dim=2))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(B, T, C))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), Norm()
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                residual = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def random_batch(data):
    starts = torch.randint(len(data) - CONTEXT, (BATCH,))
    return tuple(torch.stack([data[s + shift : s + shift + CONTEXT] for s in starts]) for shift in (0, 1))


def learning_rate(step, peak):
    if step < WARMUP:
        return peak * (step + 1) / (WARMUP + 1)
    progress = min(1.0, (step - WARMUP) / (STEPS - WARMUP))
    return peak / 10 + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - peak / 10)


@torch.no_grad()
def evaluate(model, data):
    windows = (len(data) - 1) // CONTEXT
    inputs = data[: windows * CONTEXT].view(windows, CONTEXT)
    targets = data[1 : windows * CONTEXT + 1].view(windows, CONTEXT)
    estimate = statistics.mean(model(*random_batch(data)).item() for _ in range(20))
    return model(inputs, targets).item(), estimate


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="tinyshakespeare's input.txt")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    with open(args.text) as file:
        text = file.read()
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([index[c] for c in text])
    train, validation = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]
    model = Model(len(index))
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1}]
    groups += [{"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.99), fused=True)
    for step in range(STEPS + 1):
        if step % 250 == 0:
            full, estimate = evaluate(model, validation)
            print(f"step {step}: full set {full:.4f}, 20 random batches {estimate:.4f}", flush=True)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.lr)
        model(*random_batch(train)).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
