#!/usr/bin/env python3
"""Forward and backward of one linear in PyTorch at a size where host overhead matters, which is included.

1,024 tokens through 1024 x 1024 weights: eager, torch.compile, and torch.compile with CUDA graphs, in bf16 and FP8
(tensorwise dynamic scaling). `each` waits for the device after every iteration, `stream` only after the last.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

from torch_gpu_model import FP8Linear


def microseconds(work, repeats):
    for _ in range(20):
        work()
    torch.cuda.synchronize()
    each = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        each.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return statistics.median(each) * 1e6, (time.perf_counter() - start) / repeats * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--width", type=int, default=1024, help="inputs and outputs")
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    torch.manual_seed(1337)
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    results = []
    for dtype, kind in (("bf16", nn.Linear), ("fp8", FP8Linear)):
        for how in ("eager", "compile", "compile with CUDA graphs"):
            torch._dynamo.reset()
            linear = kind(args.width, args.width, bias=False)
            mode = "reduce-overhead" if how.endswith("graphs") else "default"
            run = linear if how == "eager" else torch.compile(linear, mode=mode)
            x = torch.randn(args.tokens, args.width, requires_grad=True)
            dy = torch.randn(args.tokens, args.width)

            def work():
                torch.compiler.cudagraph_mark_step_begin()
                x.grad = linear.weight.grad = None
                run(x).backward(dy)

            each, stream = microseconds(work, args.repeats)
            results.append({"dtype": dtype, "how": how, "each_us": each, "stream_us": stream})
            print(f"PyTorch {torch.__version__} linear {args.tokens} x {args.width} x {args.width} {dtype}, {how}: "
                  f"{each:.1f} us each, {stream:.1f} us in a stream")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"program": f"PyTorch {torch.__version__}", "device": torch.cuda.get_device_name(),
                       "tokens": args.tokens, "width": args.width, "linears": results}, file, indent=1)


if __name__ == "__main__":
    main()
