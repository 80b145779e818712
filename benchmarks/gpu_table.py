#!/usr/bin/env python3
"""Prints the table of run_gpu.sh from its files in OUT.

TFLOP/s are model FLOPs: 6 per weight and token in GEMMs, the causal half of attention, no recomputation; over the whole
step including the optimizer. Ratios compare with Transformer Engine under the same recipe, with
PyTorch in the same precision, PyTorch in bf16, and llm.c, which has only bf16. Memory is what PyTorch,
Transformer Engine and Octet allocated; for llm.c, what the device had in use.
"""

import json
import pathlib
import sys


def read(folder, pattern):
    return {tuple(p.stem.split("_", 2)[1:]): json.loads(p.read_text()) for p in sorted(folder.glob(pattern))}


def versions(results):
    return {r["program"] + (f", cuDNN {r['cudnn']}" if r["cudnn"] else ", own attention") for r in results}


def ratios(program, precision, ms, peers, engine, llmc):
    """Speedups over the peers that ran."""
    found = []
    if program == "Octet" and engine:
        found.append(f"{engine['median_ms'] / ms:.2f}x of Transformer Engine")
    if program != "PyTorch" and (peer := peers.get("bf16" if precision == "bf16" else "fp8")):
        found.append(f"{peer['median_ms'] / ms:.2f}x of {peer['dtype']}")
    if program == "Octet" and precision != "bf16" and "bf16" in peers:
        found.append(f"{peers['bf16']['median_ms'] / ms:.2f}x of bf16")
    if program == "Octet" and llmc:
        found.append(f"{llmc['median_ms'] / ms:.2f}x of llm.c")
    return ", ".join(found)


def main():
    folder = pathlib.Path(sys.argv[1])
    ours, theirs, engine, llmc = (read(folder, f"{name}_*.json") for name in ("octet", "torch", "te", "llmc"))
    device = folder / "device.txt"
    named = sorted(versions(theirs.values()) | versions(engine.values()) | versions(llmc.values()))
    print("; ".join(([device.read_text().strip()] if device.exists() else []) + named))
    print()
    print("| model | B x S | program | precision | median ms | min ms | tokens/s | TFLOP/s | peak GiB | against the peers |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in dict.fromkeys(name for name, _ in [*theirs, *engine, *llmc, *ours]):
        peers = {precision: t for (name, precision), t in theirs.items() if name == model}
        other = llmc.get((model, "bf16"))
        engines = {precision: t for (name, precision), t in engine.items() if name == model}
        flops = next((t["model_gflops_per_step"] for t in [*peers.values(), *engines.values(), other] if t), None)
        rows = [("PyTorch", precision, t, t["peak_bytes"]) for precision, t in peers.items()]
        rows += [("Transformer Engine", precision, t, t["peak_bytes"]) for precision, t in engines.items()]
        rows += [("llm.c", "bf16", other, other["peak_bytes"])] if other else []
        rows += [("Octet", precision, o, o["allocated_bytes"]) for (n, precision), o in ours.items() if n == model]
        for program, precision, row, peak in rows:
            ms = row["median_ms"]
            print(
                f"| {model} | {row['batch']} x {row['length']} | {program} | {precision} | {ms:.1f} "
                f"| {row['min_ms']:.1f} | {row['tokens_per_second']:.0f} "
                f"| {(flops or row['model_gflops_per_step']) / ms:.0f} | {peak / 2**30:.1f} "
                f"| {ratios(program, precision, ms, peers, engines.get(precision), other)} |"
            )


if __name__ == "__main__":
    main()
