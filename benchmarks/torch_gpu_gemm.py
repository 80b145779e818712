#!/usr/bin/env python3
"""Matrix products of a GPT-3 5B layer through PyTorch on one GPU: the peer of octet_kernels_cuda_bench's matmul cases.

bf16 by torch.mm, FP8 by torch._scaled_mm (per tensor; fast accumulation in forward only) and, where this PyTorch has
it, with 1x128 and 128x128 blocks. Random data; the median over CUDA graph replays of several calls. TFLOP/s = 2 M N K / time.
"""

import argparse
import statistics
import time

import torch

LINEARS = {"qkv": (12288, 4096), "proj": (4096, 4096), "up": (16384, 4096), "down": (4096, 16384)}
CALLS, REPLAYS = 8, 20
WARM_UP = 0.15  # seconds: a cool GPU is faster than a loaded one


def median_seconds(work):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            work()
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_UP:
        graph.replay()
        torch.cuda.synchronize()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / CALLS)
    return statistics.median(times)


def random(rows, cols, dtype):
    return torch.randn(rows, cols, device="cuda").to(dtype)


def bf16_work(role, m, n, k):
    a = random(k, m, torch.bfloat16).t() if role == "wgrad" else random(m, k, torch.bfloat16)
    b = random(n, k, torch.bfloat16).t() if role == "fprop" else random(k, n, torch.bfloat16)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.mm(a, b, out=out)


def fp8_work(role, m, n, k, block):
    format_a = torch.float8_e4m3fn if role == "fprop" or block else torch.float8_e5m2
    a, b = random(m, k, format_a), random(n, k, torch.float8_e4m3fn).t()
    if block:
        scale_a = torch.ones(k // 128, m, device="cuda").t()  # outer dim contiguous
        if role == "wgrad":
            scale_b = torch.ones(k // 128, n, device="cuda")
        else:
            scale_b = torch.ones(n // 128, k // 128, device="cuda").t()
    else:
        scale_a = scale_b = torch.ones((), device="cuda")
    fast = role == "fprop" and not block
    out_dtype = torch.float32 if role == "wgrad" and not block else torch.bfloat16
    return lambda: torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=out_dtype, use_fast_accum=fast)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384])
    args = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}; TFLOP/s")
    print(f"{'product':24} {'bf16':>8} {'tensor':>8} {'block':>8}")
    for tokens in args.tokens:
        for name, (out, inner) in LINEARS.items():
            for role, (m, n, k) in {
                "fprop": (tokens, out, inner),
                "dgrad": (tokens, inner, out),
                "wgrad": (out, inner, tokens),
            }.items():
                rates = []
                for make in (
                    lambda: bf16_work(role, m, n, k),
                    lambda: fp8_work(role, m, n, k, False),
                    lambda: fp8_work(role, m, n, k, True),
                ):
                    try:
                        rates.append(f"{2e-12 * m * n * k / median_seconds(make()):8.0f}")
                    except (RuntimeError, ValueError) as error:
                        rates.append("       -")
                        print(f"# {tokens}_{name}_{role}: {str(error).splitlines()[0]}")
                print(f"{tokens}_{name + '_' + role:18} {' '.join(rates)}", flush=True)


if __name__ == "__main__":
    main()
