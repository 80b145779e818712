"""`octet serve` when things go wrong: folders that are damaged, clients that leave, SIGTERM under load, twice; what its log
may not hold. And greedy text over HTTP is that of `octet generate`, whole and streamed.
Usage: serve_faults_test.py OCTET TEXT"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from rank_runs import PATIENCE, SETTINGS, free_port, make_corpus, wait_until

SECRET = "a secret that no log may hold"


def model_of(octet, text, folder):
    """A model with a chat template where the test material has one, else a run without."""
    found = pathlib.Path(os.environ.get("OCTET_TEST_DATA", pathlib.Path(__file__).parents[2] / "../shared/data")) / "serving/tiny_chat"
    shutil.copytree(found, folder / "model") if found.is_dir() else train(octet, text, folder)
    return folder / "model", found.is_dir()


def train(octet, text, folder):
    make_corpus(octet, text, folder)
    settings = [word for word in SETTINGS if not word.startswith(("parallel.", "data.sequence"))]
    subprocess.run([octet, "train", *settings, "data.sequence_length=1024", "train.steps=1", "data.train=corpus", "out=model"],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Server:
    def __init__(self, octet, model, log, *options):
        self.port, self.log = free_port(), log
        with log.open("w") as output:
            self.process = subprocess.Popen([octet, "serve", model, "--port", str(self.port), "--device", "cpu", "--recipe", "fp32",
                                             "--threads", "1", *map(str, options)], stdout=output, stderr=output)
        wait_until(lambda: "serving" in self.log.read_text() or self.process.poll() is not None, "the server is up")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def post(self, path, body, **fields):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", path, json.dumps(body), fields)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()

    def text(self, path, body):
        """Of the first choice, whole and streamed alike."""
        def of(choice):
            return choice["text"] if "text" in choice else choice.get("message", choice.get("delta"))["content"] or ""
        status, whole = self.post(path, body)
        assert status == 200, whole
        _, streamed = self.post(path, {**body, "stream": True})
        pieces = [json.loads(line[6:])["choices"] for line in streamed.splitlines() if line.startswith("data: {")]
        joined = "".join(of(choice) for choices in pieces for choice in choices if choice.get("delta", {"content": 1}))
        text = of(json.loads(whole)["choices"][0])
        assert text == joined, (text, joined)
        return text

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"octet_{name} "))

    def texts(self):
        return self.metric("num_requests_running") + self.metric("num_requests_waiting")


def story(tokens):
    return {"prompt": "the", "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}


def check_damaged_folders(octet, model, folder):
    for name in ["config.json", "model.safetensors"]:
        damaged = folder / f"without_{name}"
        shutil.copytree(model, damaged)
        for path in damaged.rglob(name):
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
        port = free_port()
        ended = subprocess.run([octet, "serve", damaged, "--port", str(port), "--device", "cpu"], capture_output=True, text=True,
                               timeout=PATIENCE)
        assert ended.returncode == 1 and name in ended.stderr and "serving" not in ended.stderr, ended.stderr


def check_texts(octet, model, server, has_chat):
    prompt = "the quick brown"
    made = subprocess.run([octet, "generate", model, "--device", "cpu", "--recipe", "fp32", "--temperature", "0", "--max-tokens", "40",
                           "--ignore-eos", "--no-echo", "--json", "--prompt", prompt], check=True, capture_output=True, text=True)
    greedy = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    assert server.text("/v1/completions", {"prompt": prompt, **greedy}) == json.loads(made.stdout)["text"], made.stdout
    if has_chat:
        asked = {"messages": [{"role": "user", "content": prompt}], **greedy}
        ids = json.loads(server.post("/v1/chat/completions/render", asked)[1])["token_ids"]
        assert server.text("/v1/chat/completions", asked) == server.text("/v1/completions", {"prompt": ids, **greedy})


def check_leaving_client(server):
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        body = json.dumps(story(900)).encode()
        peer.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert peer.recv(100).startswith(b"HTTP/1.1 200")
    wait_until(lambda: server.texts() == 0 and server.metric("kv_cache_usage_perc") == 0, "its blocks are free")


def check_end_under_load(octet, model, folder):
    """All that was accepted comes whole; what comes later is refused."""
    with Server(octet, model, folder / "log_end", "--max-sequences", 8, "--drain-timeout", PATIENCE) as server, \
            concurrent.futures.ThreadPoolExecutor(24) as pool:
        replies = [pool.submit(server.post, "/v1/completions", story(500)) for _ in range(24)]
        wait_until(lambda: server.texts() == 24, "all are accepted")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "running requests" in server.log.read_text(), "the end has begun")
        try:
            assert server.post("/v1/completions", story(1))[0] == 503
        except OSError:
            pass  # nobody listens any more
        for reply in replies:
            status, text = reply.result()
            assert status == 200 and text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text, text[-300:]
        assert server.process.wait(PATIENCE) == 0


def check_second_signal(octet, model, folder):
    with Server(octet, model, folder / "log_twice", "--drain-timeout", PATIENCE) as server, \
            concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = [pool.submit(server.post, "/v1/completions", story(900)) for _ in range(8)]
        wait_until(lambda: server.metric("num_requests_running") == 8, "all run")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "running requests" in server.log.read_text(), "the end has begun")
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        for reply in replies:
            text = reply.result()[1]
            assert "the server is shutting down" in text or '"finish_reason":"length"' in text, text[-300:]
            assert text.endswith("data: [DONE]\n\n"), text[-300:]
        assert server.process.wait(PATIENCE) == 0 and time.monotonic() - begin < 20


def main():
    octet, text = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model, has_chat = model_of(octet, text, folder)
        check_damaged_folders(octet, model, folder)
        made = subprocess.run([octet, "serve", "none", "--new-api-key", "a"], check=True, capture_output=True, text=True)
        key = made.stdout.strip()
        (folder / "keys").write_text(made.stderr)
        with Server(octet, model, folder / "log_keys", "--verbose", "--api-keys", folder / "keys") as server:
            for body in [{"prompt": SECRET, "max_tokens": 4}, {"prompt": [SECRET], "n": 1e9}, {"prompt": {SECRET: 1}}, {"model": SECRET}]:
                server.post("/v1/completions", body, Authorization=f"Bearer {key}")
                server.post("/v1/chat/completions", {"messages": [body], **body}, Authorization=f"Bearer {key}")
            server.post("/v1/completions", {"prompt": SECRET}, Authorization=f"Bearer {SECRET}")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) == 0
            assert SECRET not in server.log.read_text() and key not in server.log.read_text()
        with Server(octet, model, folder / "log") as server:
            check_texts(octet, model, server, has_chat)
            check_leaving_client(server)
        check_end_under_load(octet, model, folder)
        check_second_signal(octet, model, folder)


main()
