"""`octet serve` from the command line: serves a run, reads keys again on SIGHUP, ends on SIGTERM and on bad options, which
it explains.
Usage: serve_test.py OCTET TEXT"""

import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from rank_runs import wait_until
from served import Served, new_key, train_tiny


def ask(port, path, key, body=None):
    """Status and JSON."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {key}"},
                                     data=None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main():
    octet, text = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = train_tiny(octet, text, folder)
        (first, line), (second, other) = new_key(octet, "a"), new_key(octet, "b")
        keys = folder / "keys.jsonl"
        keys.write_text(line)
        with Served(octet, model, "--api-keys", keys) as served:
            port, server, log = served.port, served.process, served.log
            status, reply = ask(port, "/v1/completions", first, {"prompt": "the", "max_tokens": 3, "temperature": 0})
            assert status == 200 and reply["usage"]["completion_tokens"] <= 3, reply
            assert ask(port, "/v1/models", second)[0] == 401
            for words in ("recipe ", "context ", "KV cache ", " blocks of ", "no chat template"):
                assert words in log(), log()
            taken = subprocess.run([octet, "serve", model, "--port", str(port)], capture_output=True, text=True)
            assert taken.returncode == 1 and f"port {port}" in taken.stderr and "KV cache" not in taken.stderr, taken.stderr
            keys.write_text("rubbish")
            server.send_signal(signal.SIGHUP)
            wait_until(lambda: "keeping the previous API keys and certificate" in log(), "the mistake is told")
            assert ask(port, "/v1/models", first)[0] == 200
            keys.write_text(other)
            server.send_signal(signal.SIGHUP)
            wait_until(lambda: "reloaded the API keys" in log(), "the keys are read again")
            assert ask(port, "/v1/models", second)[0] == 200 and ask(port, "/v1/models", first)[0] == 401
            assert second not in log() and first not in log()
            server.send_signal(signal.SIGTERM)
            begin = time.monotonic()
            assert server.wait(timeout=60) == 0, log()
            assert time.monotonic() - begin < 25, "nothing ran, and it waited"
        if socket.has_ipv6 and pathlib.Path("/proc/net/if_inet6").exists():
            with Served(octet, model, "--host", "::1") as served:
                assert f"at http://[::1]:{served.port}\n" in served.log(), served.log()
        for words, told in ((["serve", "--max-model-len", "64", "run"], "no option '--max-model-len': use --context"),
                            (["serve", "run", "--enable-auto-tool-choice"], "leave it out"),
                            (["serve", "some/Model-1B"], "hf download some/Model-1B --local-dir Model-1B"),
                            (["generate", "some/Model-1B"], "hf download some/Model-1B --local-dir Model-1B")):
            failed = subprocess.run([octet, *words], cwd=folder, capture_output=True, text=True)
            assert failed.returncode != 0 and told in failed.stderr, failed.stderr
        refused = subprocess.run([octet, "serve", "run", "--api-keys", "missing"], cwd=folder, capture_output=True, text=True)
        assert refused.returncode == 1 and "missing" in refused.stderr, refused.stderr


main()
