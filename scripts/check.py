#!/usr/bin/env python3
"""Checks that need no build. Usage: scripts/check.py all|format|layers|docs|prose|results|sizes|loc|map"""
import pathlib
import re
import subprocess
import sys

import results

ROOT = pathlib.Path(__file__).resolve().parent.parent

IS_TEST = re.compile(r"_(test|bench|fuzz)\.cc$")
IS_SHARED_BY_TESTS = re.compile(r"/testing/|cases\.(cc|h)$")
PHRASES = {  # what documents and messages do not say, and what they say instead
    r"\bwhoever\b|\bnobody\b": "anyone who, no one, unknown",
    r"\b(?:is|are) no targets\b": "are excluded from the loss",
    r"\b(?:is|are) what (?:it is|they are) without\b": "is unchanged",
    r"\b(?:is|are) no (?:JSON|text|list|object|folder|member|input|base64)\b": "is not a, non-text",
    r"\bas ever\b": "as usual",
    r"\btold apart\b": "distinguished, parsed",
    r"\bthe most (?:is|are)\b": "at most",
    r"\bcan be had\b": "is available",
    r"\binside of\b": "in, within",
    r"\bto and fro\b": "back and forth",
    r"\bpassed over\b": "skipped",
    r"\brunning texts?\b": "running sequence",
    r"\bstrangers\b": "others, untrusted clients",
}
MODEL_MAY_INCLUDE = {"ir/builder.h", "base/error.h", "base/json.h"}


def rooms():
    """cmake/rooms.txt: room -> rooms it may include, in its order."""
    lines = (ROOT / "cmake/rooms.txt").read_text().splitlines()
    return {room: arrows.split() for room, arrows in (line.split(":") for line in lines if re.match("[a-z]", line))}


def print_map():
    """The arrows as docs/map.md shows them."""
    width = max(map(len, rooms()))
    return [f"    {room:<{width}}  {' '.join(arrows)}".rstrip() for room, arrows in rooms().items()]


def room_of(path, names):
    """The room of a path below src/, the innermost where one lies in another; none for other paths."""
    return max((room for room in names if path.startswith(room + "/")), key=len, default=None)


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True).stdout
    return [pathlib.Path(p) for p in out.decode().split("\0") if p and (ROOT / p).is_file()]


def check_format():
    files = [str(p) for p in tracked("*.cc", "*.h", "*.cu", "*.cuh")]
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *files], cwd=ROOT, capture_output=True, text=True)
    names = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "error:" in line})
    return [f"{name}: not formatted (make format)" for name in names]


def check_layers():
    """A room includes what cmake/rooms.txt lets it. What tests share (testing/, *cases.h) is not for the product, and
    may include every room listed before its own; tests and benchmarks may include all."""
    arrows = rooms()
    order = list(arrows)
    faults = [f"cmake/rooms.txt: {room} names {other}, which does not stand above it"
              for room in order for other in arrows[room] if other not in order[:order.index(room)]]
    for path in tracked("src/*.cc", "src/*.h", "src/*.cu", "src/*.cuh"):
        if IS_TEST.search(path.name):
            continue
        room = room_of(str(path.relative_to("src")), order)
        shared = IS_SHARED_BY_TESTS.search(str(path))
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            match = re.match(r'#include "([a-z_/0-9]+\.c?u?h)"', line)
            if not match or match[1].startswith("octet/"):
                continue
            other = room_of(match[1], order)
            allowed = order[:order.index(room)] if shared else arrows[room]
            if other is None:
                faults.append(f"{path}:{number}: includes {match[1]}, which is in no room")
            elif IS_SHARED_BY_TESTS.search(match[1]) and not shared:
                faults.append(f"{path}:{number}: includes {match[1]}, which is for tests")
            elif other != room and other not in allowed:
                faults.append(f"{path}:{number}: {room} may not include {other} (cmake/rooms.txt)")
            elif room == "model" and other != room and match[1] not in MODEL_MAY_INCLUDE:
                faults.append(f"{path}:{number}: model/ may include only {sorted(MODEL_MAY_INCLUDE)}")
    if "\n".join(print_map()) not in (ROOT / "docs/map.md").read_text():
        faults.append("docs/map.md: its arrows are not those of cmake/rooms.txt; scripts/check.py map prints them")
    return faults


def anchors(text):
    """GitHub's anchors of the headings of a document."""
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
        for command in re.findall(r"(?:^|(?<!from)[`\s/])octet ([a-z][a-z-]*)\b", code):
            if commands and command not in commands:
                faults.append(f"{doc}: octet {command}: no such command")
    return faults


def check_results():
    """Tables of figures and the chart match the data files (scripts/results.py)."""
    try:
        found = results.differing()
    except SystemExit as error:
        return [str(error)]
    return [f"{path.relative_to(ROOT)}: not what its data gives (scripts/results.py writes it)" for path in found]


def without_comments(text):
    """C++ with as many lines."""
    return re.sub(r"""/\*.*?\*/|//[^\n]*|("(?:\\.|[^"\\\n])*")""", lambda m: m[1] or "\n" * m[0].count("\n"), text,
                  flags=re.S)


def product_sources():
    """C++ and CUDA sources of src/, tools/, include/ and python/, without tests, benchmarks, fuzz targets and what tests share
    (*_test.cc, *_bench.cc, *_fuzz.cc, testing/, *cases.*, tools/bench/)."""
    return [path for path in tracked(*(f"{top}/*.{suffix}" for top in ("src", "tools", "include", "python")
                                       for suffix in ("cc", "h", "cu", "cuh", "def")))
            if not (IS_TEST.search(str(path)) or IS_SHARED_BY_TESTS.search(str(path))
                    or str(path).startswith("tools/bench/"))]


def find_phrases(text):
    """(line, phrase, what to say instead) of PHRASES in a text, across line ends and adjacent string literals."""
    gap = r'(?:\s|"\s*\n\s*")+'
    for phrase, instead in PHRASES.items():
        for match in re.finditer(phrase.replace(" ", gap), text):
            yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].replace('"', "").split()), instead


def check_prose():
    """Documents and string literals of the product have none of PHRASES."""
    texts = {path: re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), (ROOT / path).read_text(), flags=re.S)
             for path in tracked("README.md", "docs/*.md") if path.parent.name != "lab"}
    for path in product_sources():
        code = without_comments((ROOT / path).read_text())
        # All but literals becomes blank; between adjacent literals only the quotes and a line end remain.
        texts[path] = "".join(literal or "\n" * other.count("\n") for literal, other in
                              re.findall(r'("(?:\\.|[^"\\\n])*")|([^"]+|")', code))
    return [f"{path}:{line}: '{phrase}' (say: {instead})" for path, text in texts.items()
            for line, phrase, instead in find_phrases(text)]


def code_lines(text):
    """Number of C++ lines that are neither blank nor comment."""
    return sum(1 for line in without_comments(text).splitlines() if line.strip())


def count_lines():
    """Room -> lines of product_sources(), neither blank nor comment."""
    order = list(rooms())
    counts = dict.fromkeys(order + ["tools", "include", "python"], 0)
    for path in product_sources():
        text = str(path)
        room = room_of(text.removeprefix("src/"), order) if text.startswith("src/") else path.parts[0]
        counts[room] += code_lines((ROOT / path).read_text())
    return counts


def check_loc():
    """No room has more lines (count_lines) than scripts/loc_budget.txt allows."""
    counts = count_lines()
    budget = {}
    for line in (ROOT / "scripts/loc_budget.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            room, most = line.split()
            budget[room] = int(most)
    print(f"lines of code: {sum(counts.values())} of {sum(budget.values())}: "
          + ", ".join(f"{room} {count}" for room, count in counts.items()))
    faults = [f"scripts/loc_budget.txt: {room} is {'not there' if room in counts else 'no room'}"
              for room in counts.keys() ^ budget.keys()]
    faults += [f"{room}: {count} lines, {budget[room]} granted: delete what it no longer needs, or raise the number in "
               "scripts/loc_budget.txt in a commit of its own that says what the lines buy"
               for room, count in counts.items() if count > budget.get(room, count)]
    return faults


def check_sizes():
    faults = []
    for path in tracked("*"):
        size = (ROOT / path).stat().st_size
        if size > 1 << 20:
            faults.append(f"{path}: {size} bytes (tracked files stay under 1 MiB)")
        if path.suffix in {".cc", ".h", ".cu", ".cuh", ".py"}:
            lines = (ROOT / path).read_text().count("\n")
            most = 600 if IS_TEST.search(path.name) or path.parts[0] == "tests" else 450
            if lines > most:
                faults.append(f"{path}: {lines} lines (at most {most}: split what holds two things)")
    readme = ROOT / "README.md"
    if readme.exists() and readme.read_text().count("\n") > 150:
        faults.append("README.md: more than 150 lines")
    return faults


CHECKS = {"format": check_format, "layers": check_layers, "docs": check_docs, "prose": check_prose,
          "results": check_results, "sizes": check_sizes, "loc": check_loc}


def main():
    names = sys.argv[1:] or ["all"]
    if names == ["map"]:
        print("\n".join(print_map()))
        return
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
