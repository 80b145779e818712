#!/usr/bin/env python3
"""Times one training step in PyTorch on several GPUs: the peer of `octet-bench train-step` with ranks.

    torchrun --nproc-per-node 2 benchmarks/torch_ranks_step.py --mode tp|dtensor|fsdp2 --model llama2-7b-8layers
    torchrun --nproc-per-node 2 benchmarks/torch_ranks_step.py --mode pp --model llama2-7b [--chunks 2]
    torchrun --nproc-per-node 2 benchmarks/torch_ranks_step.py --check

tp: --tensor N --sequence, by functional collectives (torch_ranks/tensor.py; --fp8 too). dtensor: the same by DTensor and
the compiler (--async-tp: exchanges beside products). fsdp2: --data N --shard parameters. pp: --pipeline N, --chunks.
Random tokens; forward, backward, clipping at 1.0, fused AdamW over float32 masters; blocks under torch.compile. A step has
the micro-batches of all ranks. Times are medians of rank 0 by CUDA events. --check: the losses of two steps, and the norms
of their gradients, are those of one rank (CPUs, float32, a tiny shape; of all modes or of --mode). --device cpu --tiny runs
a mode without GPUs.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import threading

import torch
import torch.distributed as dist
from torch.nn.attention import sdpa_kernel

from torch_gpu_model import SHAPES, Shape
from torch_gpu_step import BACKENDS
from torch_ranks.check import check
from torch_ranks.dtensor import DTensorParallel
from torch_ranks.fsdp2 import FullySharded
from torch_ranks.pipeline import Pipeline
from torch_ranks.tensor import TensorParallel

MODES = {"tp": TensorParallel, "dtensor": DTensorParallel, "fsdp2": FullySharded, "pp": Pipeline}


def checks(mode):
    """name -> (class, changed options)"""
    cases = {name: (MODES[name], {}) for name in ([mode] if mode else MODES)}
    return cases | ({"pp, 2 chunks": (Pipeline, {"chunks": 2})} if "pp" in cases else {})


def times(peer, inputs, targets, args):
    """[(seconds, loss)] of the steps after the first ones."""
    cuda = args.device == "cuda"

    def step():
        with sdpa_kernel(BACKENDS["auto"], set_priority=True) if cuda else contextlib.nullcontext():
            return peer.step(inputs, targets)

    losses = [step() for _ in range(args.warmup)]
    if not cuda:
        return [1.0], losses + [step() for _ in range(args.steps)]
    dist.barrier()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        losses.append(step())
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])], losses


def measure(args, shape):
    cuda = args.device == "cuda"
    torch.set_default_dtype(torch.bfloat16)
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    with device:  # no longer than this: under a default device the compiler leaves blocks to eager mode
        torch.manual_seed(1337 + dist.get_rank())
        peer = MODES[args.mode](args, shape, None)
        torch.manual_seed(1)
        ids = torch.randint(0, shape.vocab, (args.micro_batches, shape.batch, shape.length + 1))
    seconds, losses = times(peer, ids[:, :, :-1].contiguous(), ids[:, :, 1:].contiguous(), args)
    losses = torch.stack(losses).float()
    dist.all_reduce(losses)
    peak = torch.tensor(torch.cuda.max_memory_allocated() if cuda else 0, device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    median = statistics.median(seconds)
    return {
        "program": f"PyTorch {torch.__version__}",
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "mode": args.mode,
        "chunks": args.chunks,
        "async_tp": args.async_tp,
        "recompute": args.recompute,
        "compile": args.compile,
        "ranks": dist.get_world_size(),
        "model": args.model,
        "layers": shape.layers,
        "batch": shape.batch,
        "length": shape.length,
        "micro_batches": args.micro_batches,
        "dtype": "fp8" if args.fp8 else "bf16",
        "steps": args.steps,
        "median_ms": median * 1e3,
        "min_ms": min(seconds) * 1e3,
        "tokens_per_second": args.micro_batches * shape.batch * shape.length / median,
        "peak_bytes": peak.item(),  # of the rank that has most
        "first_loss": losses[0].item(),
        "last_loss": losses[-1].item(),
    }


def text(result):
    words = [result["mode"]]
    words += [f"{result['chunks']} chunks"] if result["chunks"] > 1 else []
    words += [name for name, key in (("async", "async_tp"), ("recompute", "recompute")) if result[key]]
    words += [] if result["compile"] else ["eager"]
    return (
        "{program} (NCCL {nccl}) {how} on {ranks} {model} ({layers} layers) {dtype} B {batch} S {length} x {micro_batches}: "
        "median {median_ms:.1f} ms, min {min_ms:.1f} ms; {tokens_per_second:.0f} tokens/s; peak {gib:.1f} GiB; loss "
        "{first_loss:.3f} -> {last_loss:.3f}".format(how=" ".join(words), gib=result["peak_bytes"] / 2**30, **result)
    )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=list(MODES))
    parser.add_argument("--model", choices=list(SHAPES), default="llama2-7b-8layers")
    parser.add_argument("--layers", type=int, help="instead of the shape's")
    parser.add_argument("--batch", type=int, help="sequences of a micro-batch, instead of the shape's")
    parser.add_argument("--length", type=int, help="instead of the shape's")
    parser.add_argument("--micro-batches", type=int, help="of a step (pp: 16; fsdp2: one a rank; else 1)")
    parser.add_argument("--chunks", type=int, default=1, help="pp: stages of a rank")
    parser.add_argument("--recompute", action="store_true", help="pp: keep the blocks' inputs only")
    parser.add_argument("--async-tp", action="store_true", help="dtensor: exchanges beside products")
    parser.add_argument("--fp8", action="store_true", help="tp, fsdp2: FP8 linears (tensorwise dynamic scaling)")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a shape that CPUs run")
    parser.add_argument("--check", action="store_true", help="compare with one rank, on CPUs")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a rank ends with an error")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    if args.check:
        args.device, args.tiny = "cpu", True
    elif not args.mode:
        parser.error("--mode or --check is wanted")
    shape = Shape("llama", 4, 64, 4, 128, 250, 2, 32) if args.tiny else SHAPES[args.model]
    for name in ("layers", "batch", "length"):
        setattr(shape, name, getattr(args, name) or getattr(shape, name))
    ranks = int(os.environ["WORLD_SIZE"])
    if args.check and ranks != 2:
        parser.error("--check is made for 2 ranks: the tiny vocabulary is padded otherwise for more")
    args.micro_batches = args.micro_batches or (4 if args.check else {"pp": 16, "fsdp2": ranks}.get(args.mode, 1))
    if args.mode == "fsdp2" and args.micro_batches % ranks:
        parser.error(f"{args.micro_batches} micro-batches do not divide among {ranks} ranks")
    if args.mode == "pp" and shape.layers % (ranks * args.chunks):
        parser.error(f"{shape.layers} layers do not divide among {ranks * args.chunks} stages")
    if args.mode != "fsdp2" and shape.family != "llama":
        parser.error(f"--mode {args.mode} has Llama shapes only")
    if args.fp8 and args.mode not in ("tp", "fsdp2"):
        parser.error("--fp8 is there for tp and fsdp2")
    if args.async_tp and not (args.mode == "dtensor" and args.compile):
        parser.error("--async-tp is the compiler's, under --mode dtensor")
    return args, shape


def main():
    args, shape = arguments()
    watchdog = threading.Timer(args.limit, lambda: os._exit(1))
    watchdog.daemon = True
    watchdog.start()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    good = True
    if args.check:
        good = check(checks(args.mode), args, shape)
    else:
        result = measure(args, shape)
        if dist.get_rank() == 0:
            print(text(result), flush=True)
            if args.json:
                with open(args.json, "w") as file:
                    json.dump(result, file, indent=1)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0 if good else 1)  # at the interpreter's end a thread of gloo now and then ends the process by abort


if __name__ == "__main__":
    main()
