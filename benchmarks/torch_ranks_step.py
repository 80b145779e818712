#!/usr/bin/env python3
"""Times one training step in PyTorch on several GPUs: the peer of `octet-bench train-step --tensor` and `--data`.

    torchrun --nproc-per-node 2 benchmarks/torch_ranks_step.py --mode tp --model llama2-7b-8layers [--fp8]
    torchrun --nproc-per-node 2 benchmarks/torch_ranks_step.py --mode fsdp2 --model llama2-7b-8layers [--fp8]

tp: tensor and sequence parallel, Llama shapes, written with functional collectives as Megatron-LM cuts the layers: tokens
are gathered in front of columns and scattered behind rows; under --fp8 the codes are gathered, with amaxes common to the
ranks, and what was gathered is kept for backward. fsdp2: fully_shard of each block, bf16 parameters, float32 gradients; the
batch is one rank's. Random tokens; forward, backward, clipping at 1.0, fused AdamW over float32 masters; blocks under
torch.compile. Times are medians of rank 0 by CUDA events. --device cpu --tiny runs both modes without GPUs.
"""

import argparse
import contextlib
import json
import os
import statistics
import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

from torch_gpu_model import SHAPES, Model, Shape, attend, product, rotate
from torch_gpu_step import BACKENDS, FusedAdamW

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def gather(x, group):
    """Rows of all ranks, of any type."""
    whole = funcol.all_gather_tensor(x.contiguous().view(torch.uint8), 0, group)
    return funcol.wait_tensor(whole).view(x.dtype)


def scatter(x, group):
    return funcol.wait_tensor(funcol.reduce_scatter_tensor(x.contiguous(), "sum", 0, group))


def quantize(x, dtype, group=None):
    amax = x.abs().amax().float()
    if group is not None:
        amax = funcol.wait_tensor(funcol.all_reduce(amax, "max", group))
    limit = torch.finfo(dtype).max
    scale = limit / amax.clamp(min=1e-12)
    return (x.float() * scale).clamp(-limit, limit).to(dtype), scale.reciprocal()


def cut_linear(fp8, columns, group):
    """y [T, N/p] of x [T/p, K] and w [N/p, K] (columns), or y [T/p, N] of x [T, K/p] and w [N, K/p]."""

    @torch._dynamo.allow_in_graph
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            if fp8:
                x, x_scale = quantize(x, E4M3, group if columns else None)
                weight, w_scale = quantize(weight, E4M3)
            else:
                x_scale = w_scale = x.new_zeros(())
            x = gather(x, group) if columns else x
            ctx.save_for_backward(x, x_scale, weight, w_scale)
            y = product(x, weight.t(), x_scale, w_scale, True) if fp8 else x @ weight.t()
            return y if columns else scatter(y, group)

        @staticmethod
        def backward(ctx, dy):
            x, x_scale, weight, w_scale = ctx.saved_tensors
            dy_scale = x_scale
            if fp8:
                dy, dy_scale = quantize(dy, E5M2, None if columns else group)
            dy = dy if columns else gather(dy, group)
            if fp8:
                dx = product(dy, weight.t().contiguous().t(), dy_scale, w_scale, False)
                dw = product(dy.t().contiguous(), x.t().contiguous().t(), dy_scale, x_scale, False)
            else:
                dx, dw = dy @ weight, dy.t() @ x
            return scatter(dx, group) if columns else dx, dw

    class Linear(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            ranks = dist.get_world_size()
            shape = (outputs // ranks, inputs) if columns else (outputs, inputs // ranks)
            self.weight = nn.Parameter(0.02 * torch.randn(shape))

        def forward(self, x):
            return Cut.apply(x, self.weight)

    return Linear


class TensorBlock(nn.Module):
    """x [T/p, H] of B sequences, whose rows are cut as a whole."""

    def __init__(self, shape, fp8, group):
        super().__init__()
        columns, rows = cut_linear(fp8, True, group), cut_linear(fp8, False, group)
        self.batch, self.heads = shape.batch, shape.heads // dist.get_world_size()
        self.norm1, self.norm2 = nn.RMSNorm(shape.hidden, eps=1e-5), nn.RMSNorm(shape.hidden, eps=1e-5)
        self.qkv, self.projection = columns(shape.hidden, 3 * shape.hidden), rows(shape.hidden, shape.hidden)
        self.gate_up, self.down = columns(shape.hidden, 2 * shape.intermediate), rows(shape.intermediate, shape.hidden)

    def forward(self, x, rope):
        qkv = self.qkv(self.norm1(x)).unflatten(0, (self.batch, -1))
        q, k, v = (t.unflatten(2, (self.heads, -1)) for t in qkv.chunk(3, dim=2))
        x = x + self.projection(attend(rotate(q, rope), rotate(k, rope), v).flatten(0, 1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=1)
        return x + self.down(functional.silu(gate) * up)


@torch._dynamo.allow_in_graph
class CutCrossEntropy(torch.autograd.Function):
    """Mean loss of logits [T, V/p] whose classes are cut."""

    @staticmethod
    def forward(ctx, logits, targets, first, group):
        def joined(x, how):
            return funcol.wait_tensor(funcol.all_reduce(x, how, group))

        logits = logits.float()
        largest = joined(logits.amax(1), "max")
        exponents = (logits - largest[:, None]).exp()
        total = joined(exponents.sum(1), "sum")
        own = (targets >= first) & (targets < first + logits.shape[1])
        at = torch.where(own, targets - first, 0)
        chosen = joined(torch.where(own, logits.gather(1, at[:, None])[:, 0], 0.0), "sum")
        ctx.save_for_backward(exponents.div_(total[:, None]).bfloat16(), own, at)
        return (total.log() + largest - chosen).mean()

    @staticmethod
    def backward(ctx, d):
        probabilities, own, at = ctx.saved_tensors
        dlogits = probabilities.float()
        dlogits.scatter_add_(1, at[:, None], -own.float()[:, None])
        return (dlogits * (d / len(at))).bfloat16(), None, None, None


class TensorModel(nn.Module):
    def __init__(self, shape, fp8, group):
        super().__init__()
        self.group, self.rank, ranks = group, dist.get_rank(), dist.get_world_size()
        self.rows = (shape.vocab + 128 * ranks - 1) // (128 * ranks) * 128
        self.tokens = nn.Parameter(0.02 * torch.randn(self.rows, shape.hidden))
        self.blocks = nn.ModuleList(TensorBlock(shape, fp8, group) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.head = cut_linear(False, True, group)(shape.hidden, self.rows * ranks)
        rope = Model(Shape("llama", 0, shape.hidden, shape.heads, 8, 64, 1, shape.length), False)
        self.register_buffer("cos", rope.cos, persistent=False)
        self.register_buffer("sin", rope.sin, persistent=False)

    def forward(self, ids, targets):
        first = self.rank * self.rows
        ids = ids.flatten() - first
        own = (ids >= 0) & (ids < self.rows)
        x = functional.embedding(torch.where(own, ids, 0), self.tokens) * own[:, None].to(self.tokens.dtype)
        x = funcol.reduce_scatter_tensor_autograd(x, "sum", 0, self.group)
        x = funcol.wait_tensor(x) if not isinstance(x, funcol.AsyncCollectiveTensor) else x.wait()
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        return CutCrossEntropy.apply(self.head(self.norm(x)), targets.flatten(), first, self.group)

    def share_norms(self):
        """Each rank's norms have seen its rows alone."""
        norms = [p.grad for n, p in self.named_parameters() if "norm" in n]
        flat = torch.cat(norms)
        dist.all_reduce(flat)
        torch._foreach_copy_(norms, list(flat.split([g.numel() for g in norms])))


def sharded(shape, fp8):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.set_default_dtype(torch.float32)
    model = Model(shape, fp8)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def measure(args, shape):
    cuda = args.device == "cuda"
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_default_device(torch.device("cuda", torch.cuda.current_device()) if cuda else "cpu")
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(1337 + rank)
    tensor = args.mode == "tp"
    model = TensorModel(shape, args.fp8, dist.group.WORLD) if tensor else sharded(shape, args.fp8)
    for block in model.blocks if not args.no_compile else []:
        block.compile()
    torch.manual_seed(1 if tensor else 1 + rank)
    ids = torch.randint(0, shape.vocab, (shape.batch, shape.length + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    if tensor:
        optimizer = FusedAdamW(model.parameters())
    else:
        groups = [
            {"params": [p for p in model.parameters() if (p.dim() >= 2) == whole], "weight_decay": decay}
            for whole, decay in ((True, 0.1), (False, 0.0))
        ]
        adamw = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step():
        with sdpa_kernel(BACKENDS["auto"], set_priority=True) if cuda else contextlib.nullcontext():
            loss = model(inputs, targets)
            loss.backward()
        if tensor:
            model.share_norms()
            optimizer.step()
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
        model.zero_grad(set_to_none=True)
        return loss.detach()

    losses = [step() for _ in range(args.warmup)]
    seconds = []
    if cuda:
        dist.barrier()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
        marks[0].record()
        for mark in marks[1:]:
            losses.append(step())
            mark.record()
        torch.cuda.synchronize()
        seconds = [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]
    else:
        losses += [step() for _ in range(args.steps)]
        seconds = [1.0]
    median = statistics.median(seconds)
    tokens = shape.batch * shape.length * (1 if tensor else ranks)
    return {
        "program": f"PyTorch {torch.__version__}",
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "mode": args.mode,
        "ranks": ranks,
        "model": args.model,
        "layers": shape.layers,
        "batch": shape.batch,
        "length": shape.length,
        "dtype": "fp8" if args.fp8 else "bf16",
        "steps": args.steps,
        "median_ms": median * 1e3,
        "min_ms": min(seconds) * 1e3,
        "tokens_per_second": tokens / median,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=["tp", "fsdp2"], required=True)
    parser.add_argument("--model", choices=list(SHAPES), default="llama2-7b-8layers")
    parser.add_argument("--layers", type=int, help="instead of the shape's")
    parser.add_argument("--batch", type=int, help="instead of the shape's")
    parser.add_argument("--length", type=int, help="instead of the shape's")
    parser.add_argument("--fp8", action="store_true", help="FP8 linears (tensorwise dynamic scaling)")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a shape that CPUs run")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a rank ends with an error")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    shape = Shape("llama", 2, 64, 4, 128, 250, 2, 32) if args.tiny else SHAPES[args.model]
    for name in ("layers", "batch", "length"):
        setattr(shape, name, getattr(args, name) or getattr(shape, name))
    if args.mode == "tp" and shape.family != "llama":
        parser.error("--mode tp has Llama shapes only")
    watchdog = threading.Timer(args.limit, lambda: os._exit(1))
    watchdog.daemon = True
    watchdog.start()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    result = measure(args, shape)
    if dist.get_rank() == 0:
        print(
            "{program} {mode} on {ranks} {model} {dtype} B {batch} S {length}: median {median_ms:.1f} ms, min {min_ms:.1f} "
            "ms; {tokens_per_second:.0f} tokens/s; peak {gib:.1f} GiB; loss {first_loss:.3f} -> {last_loss:.3f}".format(
                gib=result["peak_bytes"] / 2**30, **result
            )
        )
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
