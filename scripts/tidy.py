#!/usr/bin/env python3
"""clang-tidy (.clang-tidy) over the sources that a build folder compiles. Usage: scripts/tidy.py BUILD JOBS [SECONDS]

With SECONDS it checks files in an order given by the commit's hash and starts none after that time: a different part of
the tree for every commit."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNREADABLE = "src/kernels/cpu/"  # vector extensions (kernels/cpu/simd.h), in which v != v is no fault


def main():
    build, jobs = sys.argv[1], int(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else None
    commands = json.loads((ROOT / build / "compile_commands.json").read_text())
    files = sorted({os.path.relpath(command["file"], ROOT) for command in commands if command["file"].endswith(".cc")})
    files = [name for name in files if not name.startswith(UNREADABLE)]
    if seconds is not None:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        files.sort(key=lambda name: hashlib.sha256(head + name.encode()).digest())
    end = time.monotonic() + (seconds or float("inf"))

    def tidy(name):
        if time.monotonic() > end:
            return None
        return subprocess.run(["clang-tidy", "-p", build, "--quiet", name], cwd=ROOT, capture_output=True, text=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = [result for result in pool.map(tidy, files) if result is not None]
    found = set()  # a header's faults are reported by many sources
    for result in results:
        for fault in result.stdout.split("\n/"):
            if "error:" in fault or "warning:" in fault:
                found.add("/" + fault.strip().removeprefix("/"))
        if result.returncode != 0 and not result.stdout.strip():
            found.add(result.stderr.strip())
    for fault in sorted(found):
        print(fault.replace(f"{ROOT}/", ""))
    print(f"clang-tidy: {len(results)} of {len(files)} files, {len(found)} faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
