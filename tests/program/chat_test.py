"""`octet chat` through pipes and in a terminal, `octet data --chat` and `octet eval --rouge` from the command line.
Usage: chat_test.py OCTET TEXT"""

import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time

from served import train_adapter, train_tiny

TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}")
MARKED = ("{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
          "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}")


def pipes(octet, model, template):
    def chat(lines, *options):
        return subprocess.run([octet, "chat", model, "--chat-template", template, "--temperature", "0", "-n", "4", *options],
                              input=lines, capture_output=True, text=True, timeout=120)

    two = chat("hello\nand more\n")
    assert two.returncode == 0 and two.stdout.count("\n") >= 2, two
    assert ">" not in two.stderr and "/help" not in two.stderr, two.stderr
    assert chat("hello\n/reset\nhello\n").stdout == 2 * chat("hello\n").stdout, "a conversation is forgotten"
    system = chat("hello\n", "--system", "be brief")
    assert chat("/system be brief\nhello\n").stdout == system.stdout
    assert chat("//hello\n").stdout == chat("/system\n//hello\n").stdout != ""
    assert chat("hello\n/exit\nhello\n").stdout == chat("hello\n").stdout
    unknown = chat("/nothing\nhello\n")
    assert unknown.returncode == 0 and "no command /nothing" in unknown.stderr, unknown.stderr
    full = chat("one two\n" * 6, "--context", "60")
    assert full.returncode == 0 and "messages are forgotten]" in full.stderr, full.stderr
    long = chat("word " * 400 + "\nhi\n")
    assert long.returncode == 1 and "octet: " in long.stderr and long.stdout == chat("hi\n").stdout, long
    bare = subprocess.run([octet, "chat", model], input="", capture_output=True, text=True)
    assert bare.returncode == 1 and "no chat template" in bare.stderr, bare.stderr


def adapted(octet, folder, model, template):
    """An adapter beside its base says what it says merged; a run's own template goes before the model's."""
    adapter = train_adapter(octet, folder, "lora", "optimizer.lr=0.5", "train.steps=6")

    def chat(*words):
        done = subprocess.run([octet, "chat", *words, "--temperature", "0", "-n", "8"], input="hello\n",
                              capture_output=True, text=True, timeout=120)
        return done.stdout if done.returncode == 0 else done.stderr

    given = ("--chat-template", template)
    beside = chat(model, "--adapter", adapter, *given)
    assert beside == chat(adapter, *given) != chat(model, *given), beside
    assert chat(model, "--adapter", f"name={adapter}", *given) == beside
    two = chat(model, "--adapter", f"a={adapter}", "--adapter", f"b={adapter}", *given)
    assert "a and b are given" in two and "want one" in two, two
    assert "no chat template" in chat(model, "--adapter", adapter)
    newest = max(adapter.glob("checkpoints/*"))
    (newest / "chat_template.jinja").write_text(TEMPLATE)
    assert chat(model, "--adapter", adapter) == beside


def terminal(octet, tokenizer, template):
    """Ctrl-C stops an answer, Ctrl-D ends. Random weights of 124 M parameters answer slowly and at length."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(octet, [octet, "chat", "gpt2-124m", "--random-weights", "--tokenizer", str(tokenizer), "--chat-template",
                         str(template), "--recipe", "bf16", "--kv-cache", "bf16"])
    seen = ""

    def expect(words, seconds=120):
        nonlocal seen
        until = time.monotonic() + seconds
        while words not in seen:
            assert time.monotonic() < until, f"no {words!r} in {seen!r}"
            if select.select([fd], [], [], 0.1)[0]:
                seen += os.read(fd, 4096).decode(errors="replace")
        seen = seen[seen.index(words) + len(words):]

    try:
        expect("> ")
        os.write(fd, b"\x03")  # at the prompt: nothing but a new one
        expect("> ")
        os.write(fd, b"hello\n")
        expect("hello\r\n")
        time.sleep(0.5)
        os.write(fd, b"\x03")
        expect("[stopped]")
        expect("> ")
        os.write(fd, b"/help\n")
        expect("Ctrl-C stops an answer")
        os.write(fd, b"\x04")
        until = time.monotonic() + 60
        while (status := os.waitpid(pid, os.WNOHANG))[0] == 0:
            assert time.monotonic() < until, "Ctrl-D does not end it"
            if select.select([fd], [], [], 0.1)[0]:
                try:
                    os.read(fd, 4096)
                except OSError:
                    pass
        assert os.waitstatus_to_exitcode(status[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)


def data(octet, folder):
    def run(*words):
        return subprocess.run([octet, "data", "--tokenizer", "tok", *words], cwd=folder, capture_output=True, text=True)

    subprocess.run([octet, "tokenizer", "train", "--vocab-size", "300", "--out", "tok", "text.txt"], cwd=folder, check=True,
                   capture_output=True)
    (folder / "marked.jinja").write_text(MARKED)
    (folder / "strict.jinja").write_text("{{ raise_exception('never') }}")
    (folder / "c.jsonl").write_text('{"input": "a b", "output": "the end"}\n\n{"input": 3, "output": "x"}\nrubbish\n')
    printed = run("--chat", "marked.jinja", "--print", "c.jsonl")
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    assert printed.returncode == 0 and len(lines) == 3, printed
    assert len(lines[0]["ids"]) == len(lines[0]["mask"]) and 0 < sum(lines[0]["mask"]) < len(lines[0]["ids"]), lines[0]
    assert all(list(line) == ["error"] for line in lines[1:]), lines
    assert json.loads(run("--chat", "strict.jinja", "--print", "c.jsonl").stdout.splitlines()[0]) == {"error": "never"}
    stopped = run("--chat", "marked.jinja", "--out", "set", "c.jsonl")
    assert stopped.returncode == 1 and "c.jsonl:3" in stopped.stderr and not (folder / "set.idx").exists(), stopped.stderr
    made = run("--chat", "marked.jinja", "--out", "set", "--skip-bad-lines", "--sequence-length", "64", "c.jsonl")
    assert made.returncode == 0 and "1 conversations in 1 rows" in made.stdout and "2 lines skipped" in made.stderr, made
    assert (folder / "set_tokenizer/chat_template.jinja").read_text() == MARKED
    for words, told in ((("--print", "c.jsonl"), "--chat"), (("c.jsonl",), "--out is required"),
                        (("--chat", "auto", "--out", "s", "c.jsonl"), "no chat template"),
                        (("--chat", "marked.jinja", "--key", "text", "--out", "s", "c.jsonl"), "--key"),
                        (("--chat", "marked.jinja", "--print", "--out", "s", "c.jsonl"), "leave one out")):
        refused = run(*words)
        assert refused.returncode != 0 and told in refused.stderr, (words, refused)


def rouge(octet, folder):
    file = folder / "r.jsonl"
    file.write_text('{"target": "the cat sat", "prediction": "a cat sat"}\n')
    scored = subprocess.run([octet, "eval", "--rouge", file], capture_output=True, text=True)
    assert scored.returncode == 0, scored.stderr
    line = json.loads(scored.stdout)
    assert list(line) == ["plain", "stem"] and line["plain"]["rouge2"] == [0.5, 0.5, 0.5], line
    file.write_text('{"target": "x"}\n')
    bad = subprocess.run([octet, "eval", "--rouge", file], capture_output=True, text=True)
    assert bad.returncode == 1 and "prediction" in bad.stderr and "r.jsonl:1" in bad.stderr, bad.stderr
    assert "requires MODEL" in subprocess.run([octet, "eval"], capture_output=True, text=True).stderr


def main():
    octet, text = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text(pathlib.Path(text).read_text())
        rouge(octet, folder)
        data(octet, folder)
        model = train_tiny(octet, text, folder)
        template = folder / "chat.jinja"
        template.write_text(TEMPLATE)
        pipes(octet, model, template)
        adapted(octet, folder, model, template)
        terminal(octet, folder / "tok", template)


if __name__ == "__main__":
    main()
