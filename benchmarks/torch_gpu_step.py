#!/usr/bin/env python3
"""Times one training step in PyTorch on the GPU: the peer of `octet-bench train-step --device cuda`.

Random tokens; weights and gradients bf16; a step is forward, backward, clipping at 1.0 and AdamW over float32 masters
and moments, as ours. Through torch.compile. Times are medians by CUDA events, without waits in between.
"""

import argparse
import json
import statistics

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_gpu_model import SHAPES, Model

BACKENDS = {
    "auto": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
    "flash": [SDPBackend.FLASH_ATTENTION],
}
BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1


class FusedAdamW:
    """PyTorch's fused AdamW over float32 masters; gradients and weights are cast separately."""

    def __init__(self, parameters):
        self.weights = list(parameters)
        self.masters = [w.detach().float() for w in self.weights]
        for master in self.masters:
            master.grad = torch.empty_like(master)
        groups = [
            {"params": [m for m in self.masters if m.dim() >= 2], "weight_decay": DECAY},
            {"params": [m for m in self.masters if m.dim() < 2], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, lr=1e-4, betas=BETAS, eps=EPS, fused=True)

    @torch.no_grad()
    def step(self):
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        torch._foreach_copy_([m.grad for m in self.masters], [w.grad for w in self.weights])
        self.adamw.step()
        torch._foreach_copy_(self.weights, self.masters)


def update(weights, grads, masters, m, v, lr, step):
    norm = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float32) for g in grads]).norm()
    clip = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    for i, g in enumerate(grads):
        g = g.float() * clip
        m[i].lerp_(g, 1 - BETAS[0])
        v[i].lerp_(g * g, 1 - BETAS[1])
        moved = (m[i] / (1 - BETAS[0] ** step)) / ((v[i] / (1 - BETAS[1] ** step)).sqrt() + EPS)
        decay = DECAY if g.dim() >= 2 else 0.0
        masters[i].sub_(lr * (moved + decay * masters[i]))
        weights[i].copy_(masters[i])


class CompiledAdamW:
    """The same through torch.compile: one kernel per tensor reads the gradient and writes masters, moments and weights."""

    def __init__(self, parameters):
        self.weights = list(parameters)
        self.masters = [w.detach().float() for w in self.weights]
        self.m, self.v = ([torch.zeros_like(x) for x in self.masters] for _ in range(2))
        self.lr, self.count = (torch.tensor(x, dtype=torch.float32, device=self.m[0].device) for x in (1e-4, 0.0))
        self.update = torch.compile(update)

    @torch.no_grad()
    def step(self):
        self.count += 1
        grads, weights = [w.grad for w in self.weights], [w.detach() for w in self.weights]
        self.update(weights, grads, self.masters, self.m, self.v, self.lr, self.count)


def compiled(model, how):
    if how == "model":
        return torch.compile(model)
    if how == "blocks":
        for block in model.blocks:
            block.compile()
    return model


def measure(args, shape):
    torch.manual_seed(1337)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):  # no longer than this: under a default device the compiler leaves blocks to eager mode
        model = Model(shape, args.fp8)
        ids = torch.randint(0, shape.vocab, (shape.batch, shape.length + 1))
    run = compiled(model, args.compile)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def backward():
        with sdpa_kernel(BACKENDS[args.attention], set_priority=True):
            loss = run(inputs, targets)
            loss.backward()
        return loss

    if args.compile_only:
        backward()
        torch.cuda.synchronize()
        return None
    optimizer = (CompiledAdamW if args.optimizer == "compiled" else FusedAdamW)(model.parameters())
    marks, losses = [], []
    for _ in range(args.warmup + args.steps):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        events[0].record()
        losses.append(backward().detach())
        events[1].record()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        events[2].record()
        marks.append(events)
    torch.cuda.synchronize()
    marks = marks[args.warmup :]
    seconds = [begin.elapsed_time(end) / 1e3 for begin, _, end in marks]
    products = statistics.median(begin.elapsed_time(middle) / 1e3 for begin, middle, _ in marks)
    median, tokens = statistics.median(seconds), shape.batch * shape.length
    return {
        "program": f"PyTorch {torch.__version__}",
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "model": args.model,
        "layers": shape.layers,
        "batch": shape.batch,
        "length": shape.length,
        "dtype": "fp8" if args.fp8 else "bf16",
        "compile": args.compile,
        "attention": args.attention,
        "optimizer": args.optimizer,
        "steps": args.steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "median_ms": median * 1e3,
        "min_ms": min(seconds) * 1e3,
        "forward_backward_ms": products * 1e3,
        "tokens_per_second": tokens / median,
        "model_gflops_per_step": shape.flops() / 1e9,
        "tflops": shape.flops() / median / 1e12,
        "tflops_forward_backward": shape.flops() / products / 1e12,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "first_loss": losses[0].item(),
        "last_loss": losses[-1].item(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="gpt3-5b-8layers")
    parser.add_argument("--layers", type=int, help="instead of the shape's")
    parser.add_argument("--batch", type=int, help="instead of the shape's")
    parser.add_argument("--length", type=int, help="instead of the shape's")
    parser.add_argument("--fp8", action="store_true", help="FP8 linears (tensorwise dynamic scaling)")
    parser.add_argument("--attention", choices=list(BACKENDS), default="auto")
    parser.add_argument("--optimizer", choices=["fused", "compiled"], default="fused")
    parser.add_argument("--compile", choices=["model", "blocks", "no"], default="model")
    parser.add_argument("--compile-only", action="store_true", help="fill the compiler's cache: no optimizer, no times")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    shape = SHAPES[args.model]
    for name in ("layers", "batch", "length"):
        setattr(shape, name, getattr(args, name) or getattr(shape, name))
    result = measure(args, shape)
    if result is None:
        return
    print(
        "{program} {model} {dtype} B {batch} S {length} (attention {attention}, AdamW {optimizer}): median "
        "{median_ms:.1f} ms, min {min_ms:.1f} ms, forward+backward {forward_backward_ms:.1f} ms; "
        "{tokens_per_second:.0f} tokens/s; {tflops:.0f} TFLOP/s, forward+backward {tflops_forward_backward:.0f}; "
        "peak {gib:.1f} GiB; loss {first_loss:.3f} -> {last_loss:.3f}".format(
            gib=result["peak_bytes"] / 2**30, **result
        )
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
