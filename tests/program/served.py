"""`octet serve` of a tiny model, for tests of the program."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from rank_runs import SETTINGS, free_port, make_corpus, wait_until


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def tiny_chat():
    """The folder of the tiny chat model of the test material. Ends the test as skipped where there is none."""
    shared = pathlib.Path(__file__).resolve().parents[3] / "shared/data"
    folder = pathlib.Path(os.environ.get("OCTET_TEST_DATA") or shared) / "serving/tiny_chat"
    if not folder.exists():
        skip("test material 'serving/tiny_chat' is absent: set OCTET_TEST_DATA to the folder that holds it")
    return folder


def train_tiny(octet, text, folder):
    """One step of training: the run `folder`/run, which is returned."""
    settings = [word for word in SETTINGS if not word.startswith("parallel.")]
    make_corpus(octet, text, folder)
    subprocess.run([octet, "train", *settings, "train.steps=1", "data.train=corpus", "out=run"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return pathlib.Path(folder) / "run"


def train_adapter(octet, folder, method, *settings):
    """A few steps of an adapter on `folder`/run: the run `folder`/METHOD."""
    words = [word for word in SETTINGS if not word.startswith(("parallel.", "model."))]
    subprocess.run([octet, "train", *words, "train.steps=3", "data.train=corpus", "model.from=run", f"out={method}",
                    f"adapter.method={method}", "optimizer.lr=0.05", *settings], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return pathlib.Path(folder) / method


def new_key(octet, name):
    """An API key and what the program prints for its file, a comment and a line."""
    made = subprocess.run([octet, "serve", "none", "--new-api-key", name], check=True, capture_output=True, text=True)
    return made.stdout.strip(), made.stderr


class Served:
    """`octet serve MODEL` at a port of this machine, or a free one, until the end of the block."""

    def __init__(self, octet, model, *options, port=None):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = tempfile.NamedTemporaryFile()
        command = [octet, "serve", model, "--port", str(self.port), "--device", "cpu", "--threads", "1", *options]
        self.process = subprocess.Popen(command, stdout=self.output, stderr=self.output)

    def log(self):
        return pathlib.Path(self.output.name).read_text()

    def __enter__(self):
        wait_until(lambda: "serving" in self.log() or self.process.poll() is not None, "the server is up")
        assert self.process.poll() is None, self.log()
        return self

    def __exit__(self, kind, *_):
        self.process.kill()
        self.process.wait()
        if kind is not None:
            print(self.log())


def ask(url, body=None, headers=None):
    """Status and text of the reply."""
    headers = {"Content-Type": "application/json"} | (headers or {})
    request = urllib.request.Request(url, headers=headers, data=None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
