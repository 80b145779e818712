"""`octet bench serve` against `octet serve`, against servers that fail, and with bad options.
Usage: bench_serve_test.py OCTET TEXT"""

import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import urllib.request

from rank_runs import wait_until
from served import Served, train_tiny


SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
         "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 2000, "hidden_act": "silu"}


class Moody(http.server.BaseHTTPRequestHandler):
    """Streams two tokens without usage to the first of four requests; a 429, an error in the stream and a stream that is
    cut off to the others."""

    protocol_version = "HTTP/1.1"
    asked = []
    lock = threading.Lock()

    def do_GET(self):
        body = json.dumps({"data": [{"id": "moody"}]} if self.path == "/v1/models" else {}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            place = len(self.asked) % 4
            self.asked.append((self.path, body, self.headers["Authorization"]))
        if place == 1:
            self.send_response(429)
            self.send_header("Content-Length", "38")
            self.end_headers()
            return self.wfile.write(b'{"error": {"message": "not so quick"}}')
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for text, reason in [("a", None), ("usage", None), ("", "length")]:
            self.event(json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": reason}]}))
            if place == 3:
                return self.close()
            if place == 2:
                self.event('{"error": {"message": "it broke"}}')
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        return self.close()

    def event(self, data):
        data = f"data: {data}\r\n\r\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def close(self):
        self.close_connection = True

    def log_message(self, *_):
        pass


class Bench:
    def __init__(self, octet, folder, url):
        self.octet, self.folder, self.url = octet, folder, url

    def run(self, words):
        return subprocess.run([self.octet, "bench", "serve", self.url, *words.split()], cwd=self.folder, capture_output=True,
                              text=True)

    def summary(self, words):
        done = self.run(words + " --json result.json")
        assert done.returncode == 0, done.stderr
        return json.loads((self.folder / "result.json").read_text()), done.stdout


def check_octet(bench, folder):
    result, text = bench.summary("-n 12 -i 5 -o 8 --concurrency 4 --goodput ttft:100000,e2el:100000")
    assert (result["finished"], result["failed"], result["good_share"]) == (12, 0, 1), result
    assert (result["prompt_tokens"], result["output_tokens"]) == (60, 96), result
    assert result["first_token_seconds"]["p50"] <= result["end_to_end_seconds"]["p50"], result
    assert "TTFT" in text and "random ids" in text and "by the server's usage" in text, text
    result, _ = bench.summary("-n 12 -i 8 -o 8 --rate 400 --random-range-ratio 0.5")
    assert result["finished"] == 12 and 48 <= result["prompt_tokens"] <= 144 and result["prompt_tokens"] != 96, result
    (folder / "trace.csv").write_text("TIMESTAMP,A,B\n2023-11-16 18:15:46.0,4,3\n2023-11-16 18:15:46.1,5,2\n"
                                      "2023-11-16 18:15:46.2,5,2000\n")
    result, _ = bench.summary("--trace trace.csv --scale 2")
    assert (result["requests"], result["output_tokens"]) == (2, 5) and result["seconds"] > 0.05, result
    (folder / "prompts").write_text('the first\n{"prompt": [5, 6, 7], "output_tokens": 2}\n')
    result, _ = bench.summary("--prompts prompts -n 4 --ignore-eos -o 3 --warmup 0")
    assert (result["finished"], result["output_tokens"]) == (4, 10), result
    (folder / "schema").write_text('{"type": "array", "items": {"type": "integer"}, "minItems": 1000}')
    result, _ = bench.summary("-n 4 -i 5 -o 8 --guide schema --guided-share 0.5")
    assert (result["finished"], result["output_tokens"]) == (4, 32), result
    for words, message in [("--endpoint chat -n 2 -i 5 -o 5", "chat template"), ("--model other -n 2 -i 5 -o 5", "'other' is not served")]:
        done = bench.run(words)
        assert done.returncode == 1 and message in done.stderr and "errors: status 40" in done.stdout, done
    for words, code in [("--goodput x:3", 1), ("--rate 0", 2), ("--prompts prompts --trace trace.csv", 2)]:
        assert bench.run(words).returncode == code, words


def check_random_weights(octet, folder):
    """Models without weights: a folder whose vocabulary is larger than the tokenizer's 300 tokens, and a named one."""
    (folder / "shape").mkdir()
    (folder / "shape/config.json").write_text(json.dumps(SHAPE))
    with Served(octet, folder / "shape", "--random-weights", "--tokenizer", folder / "tokenizer") as served:
        url = served.url
        result, _ = Bench(octet, folder, url).summary("-n 6 -i 5 -o 8 --guide schema --guided-share 0.5")
        assert (result["finished"], result["output_tokens"]) == (6, 48), result
        body = {"prompt": [1999, 97], "max_tokens": 12, "temperature": 0, "echo": True,
                "structured_outputs": {"regex": "[a-c]{200}"}}
        with urllib.request.urlopen(url + "/v1/completions", json.dumps(body).encode()) as reply:
            text = json.load(reply)["choices"][0]["text"]
        assert len(text) >= 13 and set(text[1:]) <= set("abc"), text
    for words, message in [([], "--tokenizer"), (["--tokenizer", "tokenizer"], "300 tokens, the model only 65")]:
        refused = subprocess.run([octet, "serve", "gpt2-nano", "--random-weights", "--device", "cpu", *words], cwd=folder,
                                 capture_output=True, text=True)
        assert refused.returncode == 1 and message in refused.stderr, refused.stderr


def check_moody(octet, folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moody)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    bench = Bench(octet, folder, f"http://127.0.0.1:{server.server_port}/v1/")
    result, text = bench.summary("-n 8 --concurrency 1 --warmup 0 -i 3 --api-key secret")
    server.shutdown()
    assert (result["finished"], result["failed"]) == (2, 6), text
    for line in ["status 429: 2; not so quick", "errors: stream: 2; it broke", "errors: connection: 2;", "random words"]:
        assert line in text, text
    assert "counted by events" in text and result["end_to_end_seconds"]["max"] > 0, text
    path, body, key = Moody.asked[0]
    assert path == "/v1/completions" and key == "Bearer secret" and len(body["prompt"].split()) == 3, Moody.asked[0]
    assert body["model"] == "moody" and body["ignore_eos"] and body["stream_options"] == {"include_usage": True}, body


def finished(url):
    """Requests that the server has finished."""
    with urllib.request.urlopen(url + "/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("octet_request_success_total"))


def check_killed(octet, folder):
    """The server is gone in the middle of a run: what fails is counted, and the program ends."""
    with Served(octet, folder / "run") as served:
        server, url = served.process, served.url
        bench = subprocess.Popen([octet, "bench", "serve", url, "-n", "20000", "-i", "5", "-o", "20", "--concurrency", "8",
                                  "--json", "killed.json"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 text=True)
        wait_until(lambda: finished(url) >= 20, "requests are served")
        server.kill()
        _, errors = bench.communicate()
    assert bench.returncode == 0, errors
    result = json.loads((folder / "killed.json").read_text())
    assert result["finished"] >= 8 and result["finished"] + result["failed"] == 20000 and result["first_error"], result


def main():
    octet, text = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = train_tiny(octet, text, folder)
        with Served(octet, model) as served:
            check_octet(Bench(octet, folder, served.url), folder)
        check_random_weights(octet, folder)
        check_moody(octet, folder)
        check_killed(octet, folder)


main()
