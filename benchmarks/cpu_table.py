#!/usr/bin/env python3
"""Prints the table of run_cpu.sh from its files in OUT."""

import json
import pathlib
import re
import statistics
import sys


def rows_of(folder):
    for path in sorted(folder.glob("*_*.json")):
        data = json.loads(path.read_text())
        if "tokens_per_second" not in data:
            continue
        ours = data.get("program") == "octet"
        yield {
            "length": data["length"],
            "batch": data["batch"],
            "program": "octet" if ours else data["program"],
            "precision": data["recipe"] if ours else data["dtype"],
            "threads": data["threads"],
            "median": data["median_ms"],
            "min": data["min_ms"],
            "rate": f"{data['gflops']:.0f} of {data['gemm_gflops']:.0f}" if ours else "",
            "peak": data["max_rss_bytes"] / 2**30,
        }
    for path in sorted(folder.glob("llmc_*.txt")):
        times = [float(ms) for ms in re.findall(r"took ([0-9.]+) ms", path.read_text())][1:]
        if times:
            length = int(path.stem.split("_")[1])
            yield {
                "length": length,
                "batch": 4 if length == 64 else 1,
                "program": "llm.c train_gpt2",
                "precision": "fp32",
                "threads": "all",
                "median": statistics.median(times),
                "min": min(times),
                "rate": "",
                "peak": None,
            }


def main():
    rows = sorted(rows_of(pathlib.Path(sys.argv[1])), key=lambda r: (r["length"], r["precision"], r["median"]))
    print("| B | T | precision | program | threads | median ms | min ms | tokens/s | model GFLOP/s | peak GiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        tokens = r["batch"] * r["length"] / r["median"] * 1e3
        peak = f"{r['peak']:.2f}" if r["peak"] else ""
        print(
            f"| {r['batch']} | {r['length']} | {r['precision']} | {r['program']} | {r['threads']} | {r['median']:.1f} "
            f"| {r['min']:.1f} | {tokens:.1f} | {r['rate']} | {peak} |"
        )


if __name__ == "__main__":
    main()
