"""A tiny model behind `octet serve`, for tests of the program."""

import json
import pathlib
import subprocess
import urllib.error
import urllib.request

from rank_runs import SETTINGS, free_port, make_corpus, wait_until


def train_tiny(octet, text, folder):
    """One step of training: the run `folder`/run."""
    settings = [word for word in SETTINGS if not word.startswith("parallel.")]
    make_corpus(octet, text, folder)
    subprocess.run([octet, "train", *settings, "train.steps=1", "data.train=corpus", "out=run"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Served:
    """`octet serve run` at a port of this machine, or a free one, until the end of the block."""

    def __init__(self, octet, folder, *options, port=None):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = pathlib.Path(folder) / f"log.{self.port}"
        with self.log.open("w") as output:
            command = [octet, "serve", "run", "--port", str(self.port), "--device", "cpu", "--threads", "1", *options]
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)

    def __enter__(self):
        wait_until(lambda: "serving" in self.log.read_text() or self.process.poll() is not None, "the server is up")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def ask(url, body=None, headers=None):
    """Status and text of the reply."""
    headers = {"Content-Type": "application/json"} | (headers or {})
    request = urllib.request.Request(url, headers=headers, data=None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
