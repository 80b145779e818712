#!/usr/bin/env python3
"""Writes the measured tables of the documents and the README's chart from docs/results/data/*.json.

    scripts/results.py            # write them
    scripts/results.py --check    # exit 1 and name the files that differ

A data file holds claims, one table each:

    {"claim": "gpu_step", "command": "...", "hardware": "...", "date": "...", "build": "...",
     "columns": [{"name": "model"}, {"name": "Octet", "unit": "ms"}, {"name": "PyTorch", "unit": "ms", "peer": true}],
     "rows": [["GPT-2 124M", 29.8, 42.8]], "notes": ["..."]}

A column without a unit is part of the setting, one with a unit has values; "peer" marks another program's. Members of the
file other than "claims" are defaults for its claims. A document has a table between two comment lines,
<!-- claim: gpu_step --> and <!-- end -->; every claim is in at least one document.
"""

import html
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "results" / "data"
CHART = ROOT / "docs" / "results" / "peers.svg"
FIELDS = ("command", "hardware", "date", "build")
BLOCK = re.compile(r"(<!-- claim: (\w+) -->\n).*?(<!-- end -->)", re.S)


def read_claims():
    """Claims by name. Numbers are kept as written: 117.0 is not 117."""
    claims = {}
    for path in sorted(DATA.glob("*.json")):
        data = json.loads(path.read_text(), parse_float=str, parse_int=str)
        for claim in data["claims"]:
            claim = {**{k: v for k, v in data.items() if k != "claims"}, **claim}
            name = claim["claim"]
            missing = [field for field in FIELDS if not claim.get(field)]
            ragged = [row for row in claim["rows"] if len(row) != len(claim["columns"])]
            if name in claims or missing or ragged:
                sys.exit(f"{path.name}: {name}: named twice, or without {missing}, or rows of another length: {ragged}")
            claims[name] = claim
    return claims


def cell(text):
    """Thousands separated in whole numbers of five digits and more."""
    return f"{int(text):,}" if re.fullmatch(r"\d{5,}", text) else text


def heading(column):
    unit = column.get("unit")
    return f"{column['name']}, {unit}" if unit and unit != "-" else column["name"]


def table(claim):
    columns = claim["columns"]
    lines = ["| " + " | ".join(heading(c) for c in columns) + " |"]
    cells = zip(*claim["rows"])  # columns of numbers or empty cells are right-aligned
    right = ["unit" in c and all(re.match(r"([-+\d]\S*)?$", text) for text in t) for c, t in zip(columns, cells)]
    lines.append("|" + "|".join("---:" if r else "---" for r in right) + "|")
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in claim["rows"]]
    lines += ["", f"Hardware: {claim['hardware']}. Date: {claim['date']}. Build: {claim['build']}."]
    commands = [claim["command"]] if isinstance(claim["command"], str) else claim["command"]
    lines += ["", "```", *commands, "```"]
    if claim.get("notes"):
        lines += ["", *(f"- {note}" for note in claim["notes"])]
    return "\n".join(lines) + "\n"


def documents(claims):
    """Every document with tables: its path and expected content."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    shown = set()

    def block(match):
        if match[2] not in claims:
            sys.exit(f"no data file has the claim {match[2]}; there are {', '.join(claims)}")
        shown.add(match[2])
        return match[1] + table(claims[match[2]]) + match[3]

    written = {}
    for path in sorted(ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()):
        if BLOCK.search(text := path.read_text()):
            written[path] = BLOCK.sub(block, text)
    if unseen := sorted(set(claims) - shown):
        sys.exit(f"claims that no document shows: {', '.join(unseen)}")
    return written


# The chart: one bar per row, the speedup over the peer. Mid-tone colours are visible on light and dark pages.
TEXT, OURS, THEIRS = "#748089", "#2f81f7", "#8c959f"
LABELS, BARS, ROW, TOP = 325, 330, 22, 24


def bar_text(x, y, text, size=12, anchor="start", weight="normal", colour=TEXT):
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{colour}">{html.escape(text)}</text>')


def rows_of(claim):
    """(setting, figures as text, speedup) of each row; for times, less is faster."""
    names = [c["name"] for c in claim["columns"]]
    ours, theirs = names.index("Octet"), next(i for i, c in enumerate(claim["columns"]) if c.get("peer"))
    unit = claim["columns"][ours]["unit"]
    for row in claim["rows"]:
        of_row = row[names.index("unit")] if unit == "-" else unit
        a, b = float(row[ours]), float(row[theirs])
        setting = ", ".join(value for value, c in zip(row, claim["columns"]) if "unit" not in c and c["name"] != "unit")
        yield setting, f"{cell(row[ours])} against {cell(row[theirs])} {of_row}", b / a if of_row == "ms" else a / b


def chart(claims):
    most = 3.5
    width, y, parts = LABELS + BARS + 230, TOP, []
    for name in ("peer_training", "peer_serving"):
        claim = claims[name]
        peer = next(c["name"] for c in claim["columns"] if c.get("peer"))
        parts.append(bar_text(0, y, f"{claim['chart']}: Octet beside {peer}", 14, weight="bold"))
        y += 14
        first = y
        for setting, figures, times in rows_of(claim):
            length = BARS * times / most
            parts.append(bar_text(LABELS - 8, y + 14, setting, anchor="end"))
            parts.append(f'<rect x="{LABELS}" y="{y + 3}" width="{length:.1f}" height="15" rx="2" fill="{OURS}"/>')
            parts.append(bar_text(LABELS + length + 6, y + 15, f"{times:.2f}x", weight="bold"))
            parts.append(bar_text(LABELS + length + 52, y + 15, figures, 11))
            y += ROW
        one = LABELS + BARS / most
        parts.append(f'<line x1="{one:.1f}" y1="{first}" x2="{one:.1f}" y2="{y + 2}" stroke="{THEIRS}" '
                     'stroke-width="2" stroke-dasharray="4 3"/>')
        parts.append(bar_text(one, y + 15, "the peer's speed", 11, "middle"))
        y += 48
    y -= 14
    parts.append(bar_text(0, y, f"{claim['hardware']}, {claim['date']}, random data, both programs in one job. "
                                "Longer is faster.", 11))
    title = "Speed of Octet beside Transformer Engine and vLLM"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 10}" width="{width}" '
            f'height="{y + 10}" role="img" font-family="DejaVu Sans, Verdana, sans-serif">\n<title>{title}</title>\n'
            + "\n".join(parts) + "\n</svg>\n")


def differing():
    """Files whose tables or chart differ from the data, and their expected content."""
    claims = read_claims()
    wanted = {**documents(claims), CHART: chart(claims)}
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}


def main():
    found = differing()
    for path, text in found.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        print(f"{path.relative_to(ROOT)}: {'differs' if '--check' in sys.argv[1:] else 'written'}")
    sys.exit(1 if found and "--check" in sys.argv[1:] else 0)


if __name__ == "__main__":
    main()
