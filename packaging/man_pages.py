#!/usr/bin/env python3
"""Writes man pages, octet.1 and one a command, from what the program's --help says: man_pages.py OCTET FOLDER DATE."""

import gzip
import pathlib
import re
import subprocess
import sys


def help_of(octet, *words):
    return subprocess.run([octet, *words, "--help"], capture_output=True, text=True, check=True).stdout


def roff(text):
    """Text as it is: backslashes, and what begins a line as a request does."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.M)


def sections_of(text):
    """(heading, body) of help: a heading is an unindented line that ends in a colon."""
    found = [["", []]]
    for line in text.splitlines():
        if re.fullmatch(r"\S.*:", line):
            found.append([line[:-1], []])
        else:
            found[-1][1].append(line)
    return [(heading, "\n".join(body).strip("\n")) for heading, body in found]


def page(name, words, text, date, version, others):
    (_, first), *rest = sections_of(text)
    meaning, usage = first.splitlines()[0].rstrip("."), re.search(r"^Usage: (.*)", first, re.M)
    lines = [f'.TH "{name.upper()}" 1 "{date}" "octet {version}" "User Commands"', ".SH NAME", f"{roff(name)} \\- {roff(meaning)}",
             ".SH SYNOPSIS", f".B {roff(usage.group(1) if usage else ' '.join(words))}"]
    for heading, body in rest:
        if body:
            lines += [f'.SH "{roff(heading.upper())}"', ".nf", roff(body), ".fi"]
    lines += [".SH \"SEE ALSO\"", "\n".join(f".BR {roff(other)} (1){comma}" for other, comma in zip(others, [","] * (len(others) - 1) + [""]))]
    return "\n".join(lines) + "\n"


def main():
    octet, folder, date = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    top = help_of(octet)
    version = subprocess.run([octet, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    commands = re.findall(r"^  (\w+) ", dict(sections_of(top))["Subcommands"], re.M)
    pages = {"octet": page("octet", ["octet"], top, date, version, [f"octet-{command}" for command in commands])}
    for command in commands:
        pages[f"octet-{command}"] = page(f"octet-{command}", ["octet", command], help_of(octet, command), date, version, ["octet"])
    for name, text in pages.items():
        with open(folder / f"{name}.1.gz", "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
            packed.write(text.encode())


if __name__ == "__main__":
    main()
