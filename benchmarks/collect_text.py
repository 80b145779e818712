#!/usr/bin/env python3
"""Collects text present on most machines, source code and documents, into OUT/train.jsonl and OUT/validation.jsonl.

Files of the given folders by extension, each content once (by SHA-1), UTF-8 only, in the order of their hashes: the same
files give the same corpus. One file in 100 (by hash) is held out. Prints files and bytes by extension.
"""

import argparse
import collections
import hashlib
import json
import pathlib
import sys

EXTENSIONS = ".py .pyi .h .hpp .hh .cuh .cu .c .cc .cpp .inl .md .rst .txt .html .json .yaml .toml .js .ts .css .sh .cmake .pl .pm .tcl .xml .tex .lua .rb .go .rs .java".split()
LARGEST = 1 << 20  # bytes per file: larger ones are mostly generated tables


def contents(roots):
    """(hash, extension, text) of every distinct readable text file."""
    seen = set()
    for root in roots:
        for path in pathlib.Path(root).rglob("*"):
            try:
                if path.suffix not in EXTENSIONS or path.is_symlink() or not path.is_file():
                    continue
                if not 256 <= path.stat().st_size <= LARGEST:
                    continue
                data = path.read_bytes()
                text = data.decode("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            digest = hashlib.sha1(data).hexdigest()
            if digest not in seen:
                seen.add(digest)
                yield digest, path.suffix, text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("roots", nargs="+", help="folders to look through")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--max-bytes", type=int, default=400_000_000, help="stop after so much text")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted(contents(args.roots))
    sizes, counts, total = collections.Counter(), collections.Counter(), 0
    with open(args.out / "train.jsonl", "w") as train, open(args.out / "validation.jsonl", "w") as validation:
        for digest, extension, text in files:
            if total > args.max_bytes:
                break
            held_out = int(digest[:8], 16) % 100 == 0
            (validation if held_out else train).write(json.dumps({"text": text, "extension": extension}) + "\n")
            sizes[extension] += len(text)
            counts[extension] += 1
            total += len(text)
    for extension, size in sizes.most_common(12):
        print(f"{extension:8} {counts[extension]:7} files {size / 1e6:8.1f} MB")
    print(f"{sum(counts.values())} files, {total / 1e6:.1f} MB")
    if total < 100e6:
        print("fewer than 100 MB: give more folders", file=sys.stderr)


if __name__ == "__main__":
    main()
