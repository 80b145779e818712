#!/usr/bin/env python3
"""GEMM and copy rates of the machine through PyTorch: the cross-check of `octet-bench gemm` and `octet-bench copy`."""

import argparse
import json
import time

import torch


def best_seconds(work, repeats):
    work()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2048, help="M = N = K")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    result = {"program": f"PyTorch {torch.__version__}", "threads": torch.get_num_threads(), "size": args.size}
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(args.size, args.size).to(dtype) for _ in range(2))
        seconds = best_seconds(lambda: torch.mm(a, b), args.repeats)
        result[f"gemm_{name}_gflops"] = 2 * args.size**3 / seconds / 1e9
    source = torch.zeros(64 * 2**20)  # 256 MiB
    target = torch.empty_like(source)
    seconds = best_seconds(lambda: target.copy_(source), args.repeats)
    result["copy_gb_per_second"] = 2 * source.numel() * 4 / seconds / 1e9
    for key, value in result.items():
        print(f"{key}: {value:.1f}" if isinstance(value, float) else f"{key}: {value}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
