#!/usr/bin/env python3
"""Checks that the sources of rooms that build in batches (UNITY in their CMakeLists.txt) compile as one source each:
syntax alone, with the flags of a build folder. Usage: scripts/batches.py BUILD JOBS"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOT_PRODUCT = re.compile(r"(_test|_bench|_fuzz)\.cc$|/testing/|cases\.cc$")


def main():
    build, jobs = ROOT / sys.argv[1], int(sys.argv[2])
    commands = json.loads((build / "compile_commands.json").read_text())
    rooms = {}
    for text in ROOT.glob("src/**/CMakeLists.txt"):
        unity = re.search(r"\bUNITY\b(?: ALONE ([^)]*))?", text.read_text())
        if unity:
            rooms[text.parent] = set((unity[1] or "").split())

    def check(room):
        sources = sorted((c for c in commands if c["file"].startswith(f"{room}/") and not NOT_PRODUCT.search(c["file"])
                          and os.path.basename(c["file"]) not in rooms[room]), key=lambda c: c["file"])
        with tempfile.NamedTemporaryFile("w", suffix=".cc") as batch:
            batch.write("".join(f'#include "{c["file"]}"\n' for c in sources))
            batch.flush()
            flags = re.sub(r"^\S*ccache | -o \S+| -c \S+| -M\S+(?: \S+\.(?:o|d))?", "", sources[0]["command"])
            return subprocess.run(f"{flags} -Wno-subobject-linkage -fsyntax-only {batch.name}", shell=True,
                                  cwd=sources[0]["directory"], capture_output=True, text=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = dict(zip(rooms, pool.map(check, rooms)))
    for room, result in results.items():
        if result.returncode != 0:
            print(f"{room.relative_to(ROOT)}: name it otherwise, or ALONE in its CMakeLists.txt:\n{result.stderr}")
    failed = sum(result.returncode != 0 for result in results.values())
    print(f"batches: {len(rooms)} rooms, {failed} faults")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
