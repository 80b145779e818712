#!/usr/bin/env python3
"""Checks that need no build. Usage: scripts/check.py all|format|layers|docs|results|sizes"""
import pathlib
import re
import subprocess
import sys

import results

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Room -> rooms whose headers it may include (besides its own). The arrows of docs/map.md. Tests and benchmarks may
# reach further up (a pass is tested by running it).
LAYERS = {
    "base": [],
    "ir": ["base"],
    "model": ["ir", "base"],
    "precision": ["ir", "base"],
    "passes": ["precision", "ir", "base"],
    "kernels": ["precision", "ir", "base"],
    "exec": ["kernels", "passes", "precision", "ir", "base"],
    "io": ["base"],
    "infer": ["exec", "model", "passes", "precision", "io", "ir", "base"],
    "train": ["infer", "exec", "model", "passes", "precision", "io", "ir", "base"],
    "load": ["io", "base"],
    "eval": ["infer", "exec", "model", "passes", "precision", "io", "ir", "base"],
}
IS_TEST = re.compile(r"_(test|bench|fuzz)\.cc$")
MODEL_MAY_INCLUDE = {"ir/builder.h", "base/error.h", "base/json.h"}


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True).stdout
    return [pathlib.Path(p) for p in out.decode().split("\0") if p and (ROOT / p).is_file()]


def check_format():
    files = [str(p) for p in tracked("*.cc", "*.h", "*.cu", "*.cuh")]
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *files], cwd=ROOT, capture_output=True, text=True)
    names = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "error:" in line})
    return [f"{name}: not formatted (make format)" for name in names]


def test_headers(sources):
    """Headers that only tests, benchmarks and fuzzers include, directly or through another such header."""
    includers = {}
    for path in sources:
        for name in re.findall(r'#include "([^"]+\.h)"', (ROOT / path).read_text()):
            includers.setdefault(name, []).append(path)
    helpers = set()
    while True:
        found = {name for name, users in includers.items()
                 if all(IS_TEST.search(user.name) or str(user.relative_to("src")) in helpers for user in users)}
        if found == helpers:
            return helpers
        helpers = found


def check_layers():
    faults = []
    sources = tracked("src/*.cc", "src/*.h", "src/*.cu", "src/*.cuh")
    helpers = test_headers(sources)
    for path in sources:
        room = path.parts[1]
        if IS_TEST.search(path.name) or str(path.relative_to("src")) in helpers:
            continue
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            match = re.match(r'#include "([a-z_]+)/(.+)"', line)
            if not match or match[1] == room or match[1] == "octet":
                continue
            if match[1] not in LAYERS:
                faults.append(f"{path}:{number}: includes {match[1]}/{match[2]}, which is no room")
            elif match[1] not in LAYERS[room]:
                faults.append(f"{path}:{number}: {room} may not include {match[1]} (docs/map.md)")
            elif room == "model" and f"{match[1]}/{match[2]}" not in MODEL_MAY_INCLUDE:
                faults.append(f"{path}:{number}: model/ may include only {sorted(MODEL_MAY_INCLUDE)}")
    return faults


def anchors(text):
    """The names that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_docs():
    """Every path, link, make target and octet subcommand in a document exists."""
    faults = []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = {p.stem[4:].replace("_", "-") for p in tracked("tools/octet/cmd_*.cc")}
    for doc in tracked("*.md"):
        text = (ROOT / doc).read_text()
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", prose):
            target = (ROOT / doc).parent / link if link else ROOT / doc
            if not target.exists():
                faults.append(f"{doc}: link to {link}, which does not exist")
            elif anchor and anchor not in anchors(target.read_text()):
                faults.append(f"{doc}: link to {link}#{anchor}: no such heading")
        for path in re.findall(r"`((?:src|tools|docs|scripts|configs|tests|benchmarks|include)/[\w./-]+)`", text):
            if not (ROOT / path).exists():
                faults.append(f"{doc}: names {path}, which does not exist")
        code = "\n".join(re.findall(r"`[^`\n]+`|```.*?```", text, re.S))
        for target in re.findall(r"\bmake ([a-z][a-z-]+)", code):
            if target not in targets:
                faults.append(f"{doc}: make {target}: no such target")
        for command in re.findall(r"(?:^|[`\s/])octet ([a-z][a-z-]*)\b", code):
            if commands and command not in commands:
                faults.append(f"{doc}: octet {command}: no such command")
    return faults


def check_results():
    """Tables of figures and the chart are those that scripts/results.py makes of the data files."""
    try:
        found = results.differing()
    except SystemExit as error:
        return [str(error)]
    return [f"{path.relative_to(ROOT)}: not what its data gives (scripts/results.py writes it)" for path in found]


def check_sizes():
    faults = []
    for path in tracked("*"):
        size = (ROOT / path).stat().st_size
        if size > 1 << 20:
            faults.append(f"{path}: {size} bytes (tracked files stay under 1 MiB)")
        if path.suffix in {".cc", ".h", ".cu", ".cuh", ".py"}:
            lines = (ROOT / path).read_text().count("\n")
            if lines > 600:
                faults.append(f"{path}: {lines} lines (a file is one room: at most 600)")
    readme = ROOT / "README.md"
    if readme.exists() and readme.read_text().count("\n") > 150:
        faults.append("README.md: more than 150 lines")
    return faults


CHECKS = {"format": check_format, "layers": check_layers, "docs": check_docs, "results": check_results,
          "sizes": check_sizes}


def main():
    names = sys.argv[1:] or ["all"]
    failed = False
    for name in list(CHECKS) if names == ["all"] else names:
        faults = CHECKS[name]()
        print(f"check {name}: {'ok' if not faults else f'{len(faults)} faults'}")
        for fault in faults:
            print("  " + fault)
        failed |= bool(faults)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
