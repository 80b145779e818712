"""Two replicas of `octet serve` behind each gateway of docs/scaling.md, under load: one is killed and comes back, the other
is drained. Prints what clients saw. Gateways that are not installed are left out; skipped where none is.
Usage: serve_gateways_test.py OCTET TEXT [nginx] [vllm-router] [smg]"""

import collections
import hashlib
import http.client
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error

from rank_runs import free_port, wait_until
from served import Served, ask, train_tiny

CLIENTS = 6
NGINX = """
daemon off; pid nginx.pid; error_log nginx.log;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  upstream octet {
    least_conn;
    server 127.0.0.1:PORT0 max_fails=1 fail_timeout=1s;
    server 127.0.0.1:PORT1 max_fails=1 fail_timeout=1s;
    keepalive 64;
  }
  server {
    listen 127.0.0.1:LISTEN;
    client_max_body_size 32m;
    location / {
      proxy_pass http://octet;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_buffering off;
      proxy_read_timeout 600s;
      proxy_next_upstream error timeout http_503 non_idempotent;
      proxy_next_upstream_tries 2;
    }
  }
}
"""


def command_of(gateway, folder, port, replicas):
    if gateway == "nginx":
        text = NGINX.replace("LISTEN", str(port))
        for index, replica in enumerate(replicas):
            text = text.replace(f"PORT{index}", str(replica.port))
        (folder / "nginx.conf").write_text(text)
        return ["nginx", "-p", str(folder), "-c", "nginx.conf"]
    launch = [] if gateway == "vllm-router" else ["launch"]
    return [gateway, *launch, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()),
            "--policy", "cache_aware", "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
            "--health-success-threshold", "1", "--cb-timeout-duration-secs", "1", "--worker-urls", *(replica.url for replica in replicas)]


class Load:
    """Clients that ask one after another, half of them for streams."""

    def __init__(self, url):
        self.url, self.stop, self.lock = url, threading.Event(), threading.Lock()
        self.seen, self.in_a_row, self.asked = collections.Counter(), 0, 0
        self.threads = [threading.Thread(target=self.run, args=(stream,)) for stream in [False, True] * (CLIENTS // 2)]
        for thread in self.threads:
            thread.start()

    def run(self, stream):
        while not self.stop.is_set():
            with self.lock:
                self.asked += 1
                prompt = hashlib.sha256(str(self.asked).encode()).hexdigest()[:24]  # no prefix in common
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "ignore_eos": True, "stream": stream}
            try:
                status, text = ask(self.url + "/v1/completions", body)
                whole = text.rstrip().endswith("data: [DONE]") and '"error"' not in text if stream else '"usage"' in text
                outcome = "ok" if status == 200 and whole else "cut stream" if status == 200 else f"status {status}"
            except (OSError, http.client.HTTPException, urllib.error.URLError) as error:
                outcome = "cut stream" if stream else type(error).__name__
            with self.lock:
                self.seen[outcome] += 1
                self.in_a_row = self.in_a_row + 1 if outcome == "ok" else 0

    def phase(self, what, done=lambda: True):
        """Until `done` and 100 requests in a row were answered; what was seen since the last phase."""
        with self.lock:
            self.in_a_row = 0
        wait_until(lambda: self.in_a_row >= 100 and done(), what)
        with self.lock:
            seen, self.seen = self.seen, collections.Counter()
        print(f"  {what}: {dict(seen)}", flush=True)
        return seen

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def answered(replica):
    lines = ask(replica.url + "/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("octet_request_success_total"))


def is_up(url):
    try:
        return ask(url + "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1})[0] == 200
    except OSError:
        return False


def check(gateway, octet, folder):
    print(gateway, flush=True)
    options = ["--served-model-name", "tiny", "--drain-delay", "3"]
    port = free_port()
    with Served(octet, folder / "run", *options) as first, Served(octet, folder / "run", *options) as second:
        with (folder / f"{gateway}.log").open("w") as log:
            process = subprocess.Popen(command_of(gateway, folder, port, [first, second]), stdout=log, stderr=log)
        load = None
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: is_up(url), f"{gateway} is up")
            load = Load(url)
            seen = load.phase("two replicas", lambda: answered(first) > 0 and answered(second) > 0)
            assert set(seen) == {"ok"}, seen
            first.process.kill()
            first.process.wait()
            seen = load.phase("one killed")
            assert sum(count for what, count in seen.items() if what != "ok") <= 4 * CLIENTS, seen
            assert gateway != "nginx" or set(seen) <= {"ok", "cut stream"}, seen
            with Served(octet, folder / "run", *options, port=first.port) as again:
                load.phase("it is back", lambda: answered(again) > 20)
                second.process.send_signal(signal.SIGTERM)
                seen = load.phase("the other drained", lambda: second.process.poll() is not None)
                assert second.process.returncode == 0 and set(seen) == {"ok"}, seen
                load.end()
        finally:
            if load is not None:
                load.end()
            process.terminate()
            process.wait()


def main():
    octet, text = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    gateways = sys.argv[3:] or ["nginx", "vllm-router", "smg"]
    there = [gateway for gateway in gateways if shutil.which(gateway)]
    for gateway in gateways:
        if gateway not in there:
            print(f"skipped: {gateway} is not installed")
    if not there:
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        train_tiny(octet, text, pathlib.Path(name))
        for gateway in there:
            check(gateway, octet, pathlib.Path(name))


main()
