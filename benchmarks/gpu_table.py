#!/usr/bin/env python3
"""The table of run_gpu.sh from the files it left in OUT.

TFLOP/s are of the model: 6 FLOPs a weight and token in products, half of the square in attention, nothing for
recomputation; over the whole step, optimizer included. Ratios compare with the PyTorch of the same kind of precision.
"""

import json
import pathlib
import sys


def read(folder, pattern):
    return {tuple(p.stem.split("_", 2)[1:]): json.loads(p.read_text()) for p in sorted(folder.glob(pattern))}


def main():
    folder = pathlib.Path(sys.argv[1])
    ours, theirs = read(folder, "octet_*.json"), read(folder, "torch_*.json")
    device = folder / "device.txt"
    versions = {t["program"] + f", cuDNN {t['cudnn']}" for t in theirs.values()}
    print("; ".join(([device.read_text().strip()] if device.exists() else []) + sorted(versions)))
    print()
    print("| model | B x S | program | precision | median ms | min ms | tokens/s | TFLOP/s | peak GiB | against PyTorch |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in dict.fromkeys(name for name, _ in list(theirs) + list(ours)):
        peers = {precision: t for (name, precision), t in theirs.items() if name == model}
        flops = next((t["model_gflops_per_step"] for t in peers.values()), None)
        rows = [("PyTorch", precision, t, t["peak_bytes"]) for precision, t in peers.items()]
        rows += [("Octet", precision, o, o["allocated_bytes"]) for (n, precision), o in ours.items() if n == model]
        for program, precision, row, peak in rows:
            ms = row["median_ms"]
            peer = peers.get("bf16" if precision == "bf16" else "fp8")
            ratio = f"{peer['median_ms'] / ms:.2f}x of {peer['dtype']}" if peer and program == "Octet" else ""
            if program == "Octet" and precision != "bf16" and "bf16" in peers:
                ratio += f", {peers['bf16']['median_ms'] / ms:.2f}x of bf16"
            print(
                f"| {model} | {row['batch']} x {row['length']} | {program} | {precision} | {ms:.1f} "
                f"| {row['min_ms']:.1f} | {row['tokens_per_second']:.0f} "
                f"| {(flops or row['model_gflops_per_step']) / ms:.0f} | {peak / 2**30:.1f} | {ratio} |"
            )


if __name__ == "__main__":
    main()
