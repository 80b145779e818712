"""Ranks of `octet train`, or of another command, as processes with the variables of a launcher, for tests that kill, stop and starve them."""

import os
import pathlib
import random
import re
import socket
import subprocess
import time

SETTINGS = """train.device=cpu train.threads=1 data.sequence_length=32 model.size=gpt2-nano model.layers=2 model.hidden=64
  model.heads=4 train.micro_batch=1 train.global_batch=4 eval.interval=0 log.interval=1 parallel.data=2
  parallel.shard=optimizer""".split()
# Of an untied model whose gradients are not clipped, for runs in stages: the bits of the mesh without stages.
STAGES = """model.size=llama2-7b model.vocab_size=320 model.max_positions=64 model.kv_heads=2 model.intermediate=128
  model.layers=4 optimizer.clip=0 train.global_batch=8 parallel.pipeline=2""".split()
STATES = ["model.safetensors", "optimizer.safetensors", "scales.safetensors"]
PORTS = []  # what keeps those that free_port gave
PATIENCE = 120  # seconds after which a test has failed, whatever the machine's load


def make_corpus(octet, text, folder):
    """The prefix of a small corpus in `folder`."""
    (folder / "text").write_bytes(pathlib.Path(text).read_bytes()[:60000])
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([octet, "tokenizer", "train", "--vocab-size", "300", "--out", "tokenizer", "text"], **quiet)
    subprocess.run([octet, "data", "--tokenizer", "tokenizer", "--out", "corpus", "text"], **quiet)
    return folder / "corpus"


def free_port():
    """A port that no other test is given while this process lives, as in src/dist/testing/free_port.h."""
    for port in random.sample(range(29100, 32700), 3600):
        kept = socket.socket(socket.AF_UNIX)
        try:
            kept.bind(f"\0octet_port_{port}")
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            continue
        PORTS.append(kept)
        return port
    raise AssertionError("no port of 29100 to 32700 is free")


def wait_until(holds, what, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not after {seconds} s")
        time.sleep(0.01)


def state_of(pid):
    """A letter of proc(5): T stopped, Z a zombie; X where there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_stopped(process):
    return state_of(process.pid) in "Tt"


def steps_done(out):
    log = out / "log.jsonl"
    return log.read_text().count('"kind":"step"') if log.exists() else 0


def newest_checkpoint(out):
    return max((out / "checkpoints").glob("step_????????"), default=None)


def states(checkpoint):
    return [(checkpoint / name).read_bytes() for name in STATES]


class Ranks:
    """Ranks with their logs in `folder`. By rank: `own` settings, words `before` the program, another `program`, another
    `cwd`, `faults` of fault.cc, which is the library `fault`. In the end of its context all are gone."""

    def __init__(self, folder, octet, settings, size=2, own={}, before={}, program={}, cwd={}, faults={}, fault=None,
                 command=("train", *SETTINGS)):
        self.command = command
        self.folder, self.octet, self.settings, self.size = folder, octet, list(settings), size
        self.own, self.before, self.program, self.cwd, self.faults, self.fault = own, before, program, cwd, faults, fault
        self.processes, self.port = {}, free_port()
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def start(self, ranks=None):
        for rank in range(self.size) if ranks is None else ranks:
            program = self.program.get(rank, self.octet)
            command = [*self.before.get(rank, []), program, *self.command, *self.settings, *self.own.get(rank, [])]
            environment = {**os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.size,
                           "LOCAL_WORLD_SIZE": self.size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port,
                           "OCTET_TOKEN": self.folder}
            if rank in self.faults:  # the sanitizers want to be the first library
                environment |= {"LD_PRELOAD": self.fault, "OCTET_FAULT": self.faults[rank],
                                "ASAN_OPTIONS": "verify_asan_link_order=0"}
            with open(self.log(rank), "wb") as log:
                self.processes[rank] = subprocess.Popen(
                    [str(word) for word in command], stdout=log, stderr=log, cwd=self.cwd.get(rank, self.folder),
                    env={name: str(value) for name, value in environment.items()})
        return self

    def log(self, rank):
        return self.folder / f"rank_{rank}.log"

    def text(self, rank):
        return self.log(rank).read_text().replace("\r", "\n")

    def errors(self, rank):
        return [line for line in self.text(rank).splitlines() if line.startswith("octet: ")]

    def send(self, rank, number):
        self.processes[rank].send_signal(number)

    def end(self, rank, seconds=PATIENCE):
        """The rank's exit status; an error if it has not ended after `seconds`."""
        try:
            return self.processes[rank].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} has not ended after {seconds} s:\n{self.text(rank)}") from None

    def wait_stopped(self, *ranks):
        """The first of them that has stopped."""
        wait_until(lambda: any(is_stopped(self.processes[rank]) for rank in ranks), f"a rank of {ranks} stopped")
        return next(rank for rank in ranks if is_stopped(self.processes[rank]))

    def wait_taken(self, rank, number):
        """Until a signal is not pending any more."""
        status, process = pathlib.Path(f"/proc/{self.processes[rank].pid}/status"), self.processes[rank]
        wait_until(lambda: process.poll() is not None
                   or not int(re.search(r"ShdPnd:\t(\w+)", status.read_text())[1], 16) >> (number - 1) & 1,
                   f"signal {number} taken by rank {rank}")

    def finish(self):
        """All ranks end well."""
        for rank in self.processes:
            if self.end(rank) != 0:
                raise AssertionError(f"rank {rank} has failed:\n{self.text(rank)}")


def run_threads(octet, folder, settings):
    """The same ranks as threads of one process."""
    done = subprocess.run([str(word) for word in [octet, "train", *SETTINGS, *settings]], cwd=folder, capture_output=True,
                          text=True)
    if done.returncode != 0:
        raise AssertionError(f"ranks as threads have failed:\n{done.stdout}{done.stderr}")
