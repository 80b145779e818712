#!/usr/bin/env python3
"""A model on ranks that are processes with the variables of a launcher: generate, eval, bench and serve give what ranks
as threads give, from rank 0 alone; a server whose rank is killed says so, and ends without it.
Usage: serve_ranks_test.py OCTET TEXT"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from rank_runs import Ranks, free_port, wait_until
from served import ask, train_tiny

SHARED = ["--device", "cpu", "--tensor", "2", "--recipe", "fp32"]


class Bench:
    def __init__(self, octet, text, work):
        self.octet, self.work, self.run = octet, work, train_tiny(octet, text, work)
        self.text = work / "text"

    def ranks(self, name, command, *words, **options):
        return Ranks(self.work / name, self.octet, words, command=[*command, self.run, *SHARED, "--threads", "1"], **options)

    def serve(self, name):
        self.port = free_port()
        ranks = self.ranks(name, ["serve"], "--port", self.port)
        ranks.start()
        wait_until(lambda: "serving" in ranks.text(0) or ranks.processes[0].poll() is not None, "the server is up")
        assert ranks.processes[0].poll() is None, ranks.text(0)
        return ranks

    def ask(self, path, body=None):
        return ask(f"http://127.0.0.1:{self.port}{path}", body)


def commands(bench):
    """What is printed by rank 0 is what threads print, under mpirun too, where it is; the other rank is silent."""
    prompt = ["--prompt", "The table", "--temperature", "0", "--max-tokens", "20"]
    for name, command, words in (("generate", ["generate"], prompt), ("eval", ["eval"], [bench.text, "--max-tokens", "500"])):
        threads = subprocess.run([bench.octet, *command, bench.run, *SHARED, *words], check=True, capture_output=True).stdout
        with bench.ranks(name, command, *words) as ranks:
            ranks.start().finish()
            assert threads.decode() in ranks.text(0), (threads, ranks.text(0))
            assert ranks.text(1) == "", ranks.text(1)
        if shutil.which("mpirun") and (bench.octet.parent / "liboctet_mpi.so").exists():
            mpirun = ["mpirun", "-n", "2", "--oversubscribe", bench.octet, *command, bench.run, *SHARED, *words]
            allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            mpi = subprocess.run(mpirun, check=True, capture_output=True, env={**os.environ, **allowed}).stdout
            assert mpi == threads, (mpi, threads)
    words = ["-i", "8", "-o", "8", "-n", "4", "--warmup", "0"]
    with Ranks(bench.work / "bench", bench.octet, words, command=["bench", "throughput", bench.run, *SHARED]) as ranks:
        ranks.start().finish()
        assert "rank 1 of 2: " in ranks.text(0) and "4 of 4 requests finished" in ranks.text(0), ranks.text(0)
        assert ranks.text(1) == "", ranks.text(1)


def ends_by_signal(bench):
    body = {"prompt": "The table", "max_tokens": 20, "temperature": 0}
    with bench.serve("signal") as ranks:
        status, reply = bench.ask("/v1/completions", body)
        assert status == 200 and json.loads(reply)["usage"]["completion_tokens"] > 0, reply
        for rank in (1, 0):  # as a launcher passes it on
            ranks.send(rank, signal.SIGTERM)
        ranks.finish()
        assert ranks.text(1) == "", ranks.text(1)


def loses_a_rank(bench):
    body = {"prompt": "The table", "max_tokens": 20, "ignore_eos": True}
    lost = "rank 1 of 2 on "
    with bench.serve("lost") as ranks, concurrent.futures.ThreadPoolExecutor() as pool:
        def until_failed():
            while True:
                status, reply = bench.ask("/v1/completions", body)
                if status != 200:
                    return status, reply

        asked = pool.submit(until_failed)
        wait_until(lambda: "octet_generation_tokens_total" in bench.ask("/metrics")[1], "tokens")
        ranks.send(1, signal.SIGKILL)
        status, reply = asked.result(30)
        assert status >= 500 and lost in reply, (status, reply)
        status, reply = bench.ask("/health")
        assert status == 503 and "device" in reply, (status, reply)
        ranks.send(0, signal.SIGTERM)
        ranks.end(0, 60)
    with bench.serve("idle") as ranks:
        ranks.send(1, signal.SIGKILL)
        wait_until(lambda: bench.ask("/health")[0] == 503, "an idle server knows")
    with bench.serve("first") as ranks:
        ranks.send(0, signal.SIGKILL)
        assert ranks.end(1, 10) == 1, ranks.text(1)
        assert "rank 0 of 2 on " in ranks.errors(1)[0], ranks.text(1)


def refuses(bench):
    with bench.ranks("size", ["generate"], size=3) as ranks:
        ranks.start()
        for rank in range(3):
            assert ranks.end(rank) == 1
            assert "tensor: 2 ranks share the model, and 3 processes were started (variables)" in ranks.text(rank)
    with bench.ranks("unlike", ["generate"], own={1: ["--context", "24"]}) as ranks:
        ranks.start()
        for rank in range(2):
            assert ranks.end(rank) == 1
            assert "'context: 24' on rank 1, 'context: 64' on rank 0" in ranks.text(rank), ranks.text(rank)


def main():
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], pathlib.Path(work))
        for case in (commands, ends_by_signal, loses_a_rank, refuses):
            case(bench)
            print(f"passed: {case.__name__}", flush=True)


if __name__ == "__main__":
    main()
