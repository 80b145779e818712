"""Commands in documents are commands of the program: every `octet ...` of a code block or of inline code has options that the
command has, with values that it takes; every key=value of `octet train` and `octet plan` is a setting with a value of its
type; every configs/ file is there. Plans of PLANNED are made, of two layers. Errors of docs/troubleshooting.md are what the program says: a
block `console` there is a command behind "$ " and the lines that it must print. Options, settings, routes and metrics in
the last column of the tables of docs/from_vllm.md exist.
Usage: documents_test.py OCTET REPOSITORY [DOCUMENT...]"""

import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from rank_runs import make_corpus
from served import Served

PLANNED = ["README.md", "docs/training.md"]
SHELL = re.compile(r"[|&;()<>]+")
FAULTS = []


def fault(document, text, what):
    FAULTS.append(f"{document}: {what}\n    {text.strip()}")


class Program:
    def __init__(self, octet):
        self.octet = octet
        rows = re.findall(r"^\| `([\w.]+)` \| (\w+) \| `?[^|]*?`? \| ([^|]*) \|", self.run("config", "--markdown"), re.M)
        self.settings = {name: (kind, re.findall(r"[^ ,]+", rest[8:]) if (rest := allowed).startswith("one of: ") else [])
                         for name, kind, allowed in rows}
        assert len(self.settings) > 50, "octet config --markdown: no table of settings"

    def run(self, *words):
        return subprocess.run([self.octet, *words], capture_output=True, text=True, check=True).stdout

    @functools.cache
    def command(self, path):
        """Options, positionals and subcommands of a command, from its help."""
        options, positionals, below, part = {}, [], set(), ""
        for line in self.run(*path, "--help").splitlines():
            if line and not line.startswith(" "):
                part = line
            words = re.match(r"  (\S+)(?: (TEXT|INT|UINT|FLOAT)(\S*))?(.*)", line)
            if not words or line.startswith("   "):
                continue
            names, kind, form, rest = words.groups()
            if part == "Positionals:":
                positionals.append((names, "REQUIRED" in rest, "..." in rest))
            elif part == "Subcommands:":
                below.add(names)
            elif names.startswith("-"):  # also those under a heading of their own
                choices = re.match(r":\{([^}]*)\}", form or "")
                for name in names.split(","):
                    options[name] = (kind, choices[1].split(",") if choices else [], rest.strip().startswith("..."))
        for name in below:  # `octet bench --beams 4` is of any of them
            for option, row in self.command((*path, name))[0].items():
                options.setdefault(option, row)
        return options, positionals, below

    def faults_of(self, words, whole):
        """What is wrong with the words behind `octet`; `whole`: positionals must be there too."""
        path = []
        while words and words[0] in self.command(tuple(path))[2]:
            path.append(words.pop(0))
        options, positionals, below = self.command(tuple(path))
        if below and words and re.match("[a-z]", words[0]):
            yield f"octet {' '.join(path)}: no command '{words[0]}'"
        given, many, open_end = 0, any(row[2] for row in positionals), "..." in words
        words = [word for word in words if word != "..."]
        while words:
            word = words.pop(0)
            if not re.match(r"-[-a-zA-Z]", word):
                given += 1
                if path in (["train"], ["plan"]):
                    yield from self.faults_of_setting(word)
                continue
            name, _, value = word.partition("=")
            if name not in options:
                yield f"octet {' '.join(path)}: no option {name}"
                continue
            kind, choices, variadic = options[name]
            if kind is None:
                continue
            if not value and not words:
                if whole:
                    yield f"octet {' '.join(path)}: {name} without a value"
                continue
            value = value or words.pop(0)
            if choices and value not in choices and not value.isupper():
                yield f"octet {' '.join(path)}: {name} {value} (takes {', '.join(choices)})"
            if kind != "TEXT" and not re.fullmatch(r"[-+.\deE,]+|[A-Z]\w*|inf", value):
                yield f"octet {' '.join(path)}: {name} {value} (takes a number)"
            while variadic and words and not words[0].startswith("-"):
                words.pop(0)
        if whole and not open_end and given < sum(row[1] for row in positionals):
            yield f"octet {' '.join(path)}: want {' '.join(row[0] for row in positionals if row[1])}"
        if not many and not below and given > len(positionals):
            yield f"octet {' '.join(path)}: {given} arguments, it takes {len(positionals)}"

    def faults_of_setting(self, word):
        name, equals, value = word.partition("=")
        if not equals:
            if word.startswith("configs/") and not (ROOT / word).exists():
                yield f"{word}: no such file"
            return
        if name not in self.settings:
            yield f"{name}: no such setting"
            return
        kind, choices = self.settings[name]
        good = {"integer": r"\d+|[A-Z]\w*", "number": r"-?[\d.]+(e-?\d+)?|[A-Z]\w*", "bool": "true|false"}.get(kind, ".*")
        if not re.fullmatch(good, value) or (choices and value not in choices and not value.isupper()):
            yield f"{word}: not a value of a setting of type {kind} {', '.join(choices)}"


def commands_of(text):
    """Simple commands of shell text, as lists of words, with what they look like."""
    text = re.sub(r"\\\n\s*", " ", text)
    for line in text.splitlines():
        lexer = shlex.shlex(line.removeprefix("$ ").strip(), posix=True, punctuation_chars=True)
        lexer.wordchars += ":,%@+{}[]$^!"
        try:
            words = list(lexer)
        except ValueError:  # a line that is no shell
            continue
        command = []
        for word in [*words, ";"]:
            if not SHELL.fullmatch(word):
                command.append(word.strip("[]"))
                continue
            if word.startswith(">") and command and command[-1] == "2":
                command.pop()
            while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
                command.pop(0)
            if command and re.fullmatch(r"(.*/)?octet|\$OCTET", command[0]):
                yield command[1:], line
            command = [] if word != ">" and word != "<" else ["redirected"]


def check_commands(program, document, text):
    count = 0
    text = re.sub(r"^```(console|text)\n.*?^```", "", text, flags=re.S | re.M)  # check_errors() runs them
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.S | re.M) + re.findall(r"(?:^    \S[^\n]*\n)+", text, re.M)
    inline = re.findall(r"`(octet [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M).replace("\n", " "))
    for whole, pieces in ((True, blocks), (False, inline)):
        for piece in pieces:
            for words, line in commands_of(piece):
                count += 1
                for what in program.faults_of(list(words), whole):
                    fault(document, line, what)
            for body in re.findall(r"curl[^\n]* -d '([^']*)'", piece):
                try:
                    json.loads(body)
                except ValueError as error:
                    fault(document, body, f"no JSON: {error}")
    return count


def check_plans(program, document, text):
    """Makes them, of two layers."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.S | re.M):
        for words, line in commands_of(block):
            if words[0] != "plan":
                continue
            done = subprocess.run([program.octet, *words, "model.layers=2"], cwd=ROOT, capture_output=True, text=True)
            if done.returncode != 0:
                fault(document, line, done.stderr)


def ask(server, words):
    """The reply of the server to `curl words`, whatever its status."""
    url = next(word for word in words if word.startswith("localhost:8000")).replace("localhost:8000", server.url)
    options = dict(zip(words, words[1:]))
    header = options.get("-H", "Accept: */*").split(": ")
    request = urllib.request.Request(url, options.get("-d", "").encode() or None, dict([header]))
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:
        return json.loads(error.read())["error"]["message"]


def prepare(octet, folder):
    """What the commands of docs/troubleshooting.md are about: a text, a corpus, a run, folders and data with a fault."""
    def octet_does(*words):
        subprocess.run([octet, *words], cwd=folder, check=True, capture_output=True)

    make_corpus(octet, ROOT / "docs/results_gpu.md", folder)
    octet_does(*"""train model.size=gpt2-nano model.layers=1 model.hidden=32 model.heads=2 data.train=corpus
      data.sequence_length=32 train.micro_batch=2 train.steps=2 eval.interval=0 train.threads=1 out=out/run""".split())
    octet_does("tokenizer", "train", "--vocab-size", "300", "--out", "foreign_tokenizer", str(ROOT / "LICENSE"))
    octet_does("data", "--tokenizer", "foreign_tokenizer", "--out", "foreign", "text")
    (folder / "content.jsonl").write_text('{"content": "a"}\n')
    for name, change in {"unknown_family": {"model_type": "deepseek_v3"}, "unknown_option": {"activation_function": "swish9"},
                         "truncated": {}, "no_tokenizer": {}}.items():
        copy = folder / name
        shutil.copytree(folder / "out/run/checkpoints/step_00000002", copy)
        (copy / "manifest.json").unlink()
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(config | change))
    os.truncate(folder / "truncated/model.safetensors", 20000)
    for path in (folder / "no_tokenizer").glob("tokenizer*"):
        path.unlink()


def check_errors(program, document, text, folder):
    """Runs the blocks `console`; fragments of the blocks `text` are in the sources."""
    prepare(program.octet, folder)
    count = 0
    with Served(program.octet, folder / "out/run") as server:
        for block in re.findall(r"^```console\n(.*?)^```", text, re.S | re.M):
            command, *printed = block.removeprefix("$ ").splitlines()
            words = shlex.split(command)
            if words[0] == "curl":
                shown = ask(server, words)
            else:
                done = subprocess.run([program.octet, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=120,
                                      stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
                shown = " ".join((done.stdout + done.stderr).split())
            found = re.search(".*?".join(re.escape(part.strip()) for part in "\n".join(printed).split("...")), shown)
            if not found:
                fault(document, command, f"the program says:\n    {shown}")
            count += 1
    sources = "".join(path.read_text() for path in sorted(ROOT.glob("src/**/*.[ch]*")))
    sources = re.sub(r'"\s*\n\s*"', "", sources)
    for block in re.findall(r"^```text\n(.*?)^```", text, re.S | re.M):
        for part in re.split(r"\.\.\.", block.strip()):
            if part.strip() not in sources:
                fault(document, block, f"no message has '{part}'")
        count += 1
    return count


def check_counterparts(program, document, text):
    """The last column of each table: what stands there for others' words exists."""
    known = {"--help"}
    paths = [()]
    for path in paths:
        options, _, below = program.command(path)
        known |= options.keys()
        paths += [(*path, name) for name in sorted(below)]
    routes = (ROOT / "src/serve/routes.cc").read_text() + (ROOT / "src/serve/server.cc").read_text()
    metrics = (ROOT / "src/serve/server_metrics.cc").read_text()
    for line in text.splitlines():
        if not line.startswith("| "):
            continue
        for code in re.findall(r"`([^`]+)`", line.rstrip("| ").rpartition(" | ")[2]):
            word = code.split()[0]
            if word.startswith("--") and word not in known:
                fault(document, line, f"{word}: no option of any command")
            elif re.match(r"[a-z]+\.[a-z_]+(=|$)", word) and word.partition("=")[0] not in program.settings:
                fault(document, line, f"{word}: no such setting")
            elif word.startswith("/") and f'"{word}"' not in routes:
                fault(document, line, f"{word}: no such route")
            elif word.startswith("octet_") and f'"{word.removeprefix("octet_")}"' not in metrics:
                fault(document, line, f"{word}: no such metric")


def main():
    program = Program(str(pathlib.Path(sys.argv[1]).resolve()))
    documents = sys.argv[3:] or subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True,
                                               check=True).stdout.split()
    checked = 0
    for document in documents:
        text = (ROOT / document).read_text()
        checked += check_commands(program, document, text)
        if document in PLANNED:
            check_plans(program, document, text)
        if document == "docs/from_vllm.md":
            check_counterparts(program, document, text)
        if document == "docs/troubleshooting.md":
            with tempfile.TemporaryDirectory() as folder:
                print(f"{check_errors(program, document, text, pathlib.Path(folder))} errors of {document}")
    print(f"{checked} commands in {len(documents)} documents")
    for one in FAULTS:
        print(one)
    return 1 if FAULTS or not checked else 0


ROOT = pathlib.Path(sys.argv[2]).resolve()
if __name__ == "__main__":
    sys.exit(main())
