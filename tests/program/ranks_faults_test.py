#!/usr/bin/env python3
"""Ranks of `octet train` under faults: what the others say and how soon they end, and that the run goes on from a sound
checkpoint to the same bytes as one without the fault. Cases run side by side: most of their time is spent waiting."""

import argparse
import concurrent.futures
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from rank_runs import STAGES, Ranks, make_corpus, newest_checkpoint, run_threads, states, steps_done, wait_until

STEPS, SAVED, TIMEOUT = 6, 4, 3  # of the run; the step whose checkpoint is disturbed; parallel.timeout where a rank stops
STAGE_RANKS = 4  # two stages of two data ranks
SIGNALS = {"kill": (signal.SIGKILL, 10, "has ended or closed its connection"),  # and the bound in seconds
           "stop": (signal.SIGSTOP, TIMEOUT + 5, f"was silent for {TIMEOUT} s")}
TEMPORARY, FINAL = f"out/checkpoints/step_{SAVED:08d}.tmp", f"out/checkpoints/step_{SAVED:08d}"
PHASES = {  # of a checkpoint, as calls of the rank that writes the file
    "while weights are written": f"fsync {TEMPORARY}/model.safetensors.tmp",
    "while moments are written": f"fsync {TEMPORARY}/optimizer.safetensors.tmp",
    "before the manifest": f"fsync {TEMPORARY}/run.json.tmp",
    "while the manifest is written": f"fsync {TEMPORARY}/manifest.json.tmp",
    "before the rename": f"rename {FINAL}",
}
CASES = {}


def case(name, *arguments):
    def add(function):
        CASES[name] = lambda bench, folder: function(bench, folder, *arguments)
        return function
    return add


class Bench:
    """What all cases share: program, corpus, the states after STEPS steps without a fault."""

    def __init__(self, octet, text, fault, work):
        self.octet, self.text, self.fault, self.work = octet, text, fault, work
        self.corpus = make_corpus(octet, text, work)
        self.common = [f"data.train={self.corpus}", f"train.steps={STEPS}", "checkpoint.interval=2"]
        run_threads(octet, work, [*self.common, "out=whole"])
        self.expected = states(newest_checkpoint(work / "whole"))
        self.stages = [f"data.train={self.corpus}", *STAGES, "checkpoint.interval=4"]
        run_threads(octet, work, [*self.stages, f"train.steps={STEPS}", "out=whole_stages"])

    def ranks(self, folder, settings=(), **options):
        return Ranks(folder, self.octet, [*self.common, f"out={folder}/out", *settings], fault=self.fault, **options)

    def goes_on(self, folder):
        """From the newest checkpoint in `folder`/out to the end."""
        run_threads(self.octet, folder, [*self.common, "out=out"])
        assert states(newest_checkpoint(folder / "out")) == self.expected, "the resumed run ends with other states"


def says(ranks, rank, pattern, seconds=60):
    """The rank fails within `seconds`, with one message that has the pattern."""
    assert ranks.end(rank, seconds) != 0, f"rank {rank} has ended well:\n{ranks.text(rank)}"
    errors = ranks.errors(rank)
    assert len(errors) == 1 and re.search(pattern, errors[0]), f"rank {rank}, want one '{pattern}':\n{ranks.text(rank)}"


def lost(victim, how, size=2):
    return rf"rank {victim} of {size} on \S+ {how}; it was in step \d+, graph \w+ \(number \d+ of its run\)"


def in_a_step(bench, folder, victim, action):
    number, bound, how = SIGNALS[action]
    log = folder / "out" / ("log.jsonl" if victim == 0 else "ranks/rank_1/log.jsonl")
    settings = [f"parallel.timeout={TIMEOUT}"] if action == "stop" else []
    with bench.ranks(folder, settings, faults={victim: f"write {log} {action} 5"}) as ranks:  # after the first checkpoint
        ranks.start()
        ranks.end(victim) if action == "kill" else ranks.wait_stopped(victim)
        says(ranks, 1 - victim, lost(victim, how), bound)
    bench.goes_on(folder)


def before_steps(bench, folder, victim, action):
    number, bound, how = SIGNALS[action]
    lock = folder / "out" / ("lock" if victim == 0 else "ranks/rank_1/lock")
    with bench.ranks(folder, [f"parallel.timeout={TIMEOUT}"], faults={victim: f"open {lock} {action} 1"}) as ranks:
        ranks.start()
        ranks.end(victim) if action == "kill" else ranks.wait_stopped(victim)
        says(ranks, 1 - victim, rf"rank {victim} of 2 on \S+ {how}; it had run no graph", bound)
    bench.goes_on(folder)


def in_a_pipeline(bench, folder, victim, action):
    """In the midst of some step: the run has no checkpoints, no evaluation and no end. It goes on from an earlier one."""
    number, bound, how = SIGNALS[action]
    saved = folder / "out" / "checkpoints"
    shutil.copytree(bench.work / "whole_stages" / "checkpoints", saved)
    shutil.rmtree(newest_checkpoint(folder / "out"))
    assert newest_checkpoint(folder / "out").name == f"step_{SAVED:08d}"
    before = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    endless = [*bench.stages, "train.steps=1G", "checkpoint.interval=0", f"parallel.timeout={TIMEOUT}", f"out={folder}/out"]
    with Ranks(folder, bench.octet, endless, size=STAGE_RANKS) as ranks:
        ranks.start()
        wait_until(lambda: steps_done(folder / "out") > 4, "steps")
        ranks.send(victim, number)
        began = time.monotonic()
        for rank in set(range(STAGE_RANKS)) - {victim}:
            says(ranks, rank, lost(victim, how, STAGE_RANKS).replace(r"graph \w+", "graph train"),
                 max(bound - (time.monotonic() - began), 0.1))
    assert {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()} == before, "checkpoints have changed"
    with Ranks(folder / "again", bench.octet, [*bench.stages, f"train.steps={STEPS}", f"out={folder}/out"],
               size=STAGE_RANKS) as ranks:
        ranks.start()
        ranks.finish()
        assert f"at step {SAVED}" in ranks.text(0), ranks.text(0)
    expected = states(newest_checkpoint(bench.work / "whole_stages"))
    assert states(newest_checkpoint(folder / "out")) == expected, "the resumed run ends with other states"


def in_a_checkpoint(bench, folder, victim, action, phase):
    """The rank that is there stops; it is the victim, or goes on when the victim has been struck."""
    number, bound, how = SIGNALS[action]
    settings = [f"parallel.timeout={TIMEOUT}"] if action == "stop" else []
    call, path = PHASES[phase].split()
    with bench.ranks(folder, settings, faults={rank: f"{call} {folder}/{path} stop 1" for rank in (0, 1)}) as ranks:
        ranks.start()
        there = ranks.wait_stopped(0, 1)
        ranks.send(victim, number)
        if there != victim:
            ranks.send(there, signal.SIGCONT)
        says(ranks, 1 - victim, lost(victim, how), bound)
    bench.goes_on(folder)


for action in SIGNALS:
    for victim in (0, 1):
        case(f"{action}: rank {victim} before the first step", victim, action)(before_steps)
        case(f"{action}: rank {victim} in a step", victim, action)(in_a_step)
        for phase in PHASES:
            case(f"{action}: rank {victim} {phase}", victim, action, phase)(in_a_checkpoint)
    for victim in (0, STAGE_RANKS - 1):
        case(f"{action}: rank {victim} in a pipeline's step", victim, action)(in_a_pipeline)


@case("disk: full under a checkpoint", [0, 1], f"{TEMPORARY}/optimizer.safetensors.tmp", 1)
@case("disk: full under rank 1's log", [1], "out/ranks/rank_1/log.jsonl", 5)
def no_disk(bench, folder, writers, path, count):
    with bench.ranks(folder, faults={rank: f"write {folder}/{path} disk {count}" for rank in writers}) as ranks:
        ranks.start()
        for rank in (0, 1):
            says(ranks, rank, "the disk is full or over quota")
        assert any(re.search(r"rank \d of 2 on \S+", ranks.errors(rank)[0]) for rank in (0, 1)), ranks.text(0) + ranks.text(1)
    bench.goes_on(folder)


@case("memory: too little for rank 1")
def no_memory(bench, folder):
    limit = ["prlimit", "--as=800000000"]
    if subprocess.run([*limit, bench.octet, "--version"], capture_output=True, check=False).returncode != 0:
        return  # a sanitizer maps more than that
    with bench.ranks(folder, ["model.hidden=1024", "model.layers=8"], before={1: limit}) as ranks:
        ranks.start()
        says(ranks, 1, r"out of memory: cannot map \d+ bytes for .*: Cannot allocate memory")
        says(ranks, 0, r"rank 1 of 2 on \S+ gave up: cannot map", 10)
    assert newest_checkpoint(folder / "out") is None


def own_folders(folder):
    for rank in (0, 1):
        (folder / str(rank)).mkdir(parents=True)
    return {rank: folder / str(rank) for rank in (0, 1)}


@case("folder: out that rank 1 does not see")
def unseen_folder(bench, folder):
    with bench.ranks(folder, ["out=run"], cwd=own_folders(folder)) as ranks:
        ranks.start()
        for rank in (0, 1):
            says(ranks, rank, r"rank 1 of 2 on \S+ does not see the folder run of rank 0, .*: set out= to a file system that they share")


@case("data: damaged on rank 1 in the run")
def damaged_data(bench, folder):
    cwd = own_folders(folder)
    for own in cwd.values():
        for file in bench.work.glob("corpus.*"):
            shutil.copy(file, own)
    with bench.ranks(folder, ["data.train=corpus", "train.steps=1G", "checkpoint.interval=20"], cwd=cwd) as ranks:
        ranks.start()
        wait_until(lambda: newest_checkpoint(folder / "out"), "a checkpoint")
        with open(cwd[1] / "corpus.bin", "r+b") as file:
            file.write(b"\xff" * (cwd[1] / "corpus.bin").stat().st_size)
        says(ranks, 1, "corpus: token .* outside the vocabulary")
        says(ranks, 0, lost(1, "gave up: corpus: token .* outside the vocabulary.*"), 10)
    done = int(newest_checkpoint(folder / "out").name[5:])
    run_threads(bench.octet, folder, [*bench.common, f"train.steps={done + 1}", "out=out"])


@case("data: another on rank 1 from the start")
def unlike_data(bench, folder):
    cwd = own_folders(folder)
    for rank, own in cwd.items():
        for file in bench.work.glob("corpus.*"):
            shutil.copy(file, own)
    with open(cwd[1] / "corpus.bin", "r+b") as file:
        file.write(b"\1\0")
    with bench.ranks(folder, ["data.train=corpus"], cwd=cwd) as ranks:
        ranks.start()
        for rank in (0, 1):
            says(ranks, rank, r"data: rank 1 of 2 differs from rank 0: line 2 is 'checksum \w+' on rank 1")


@case("settings: another on rank 1")
def unlike_settings(bench, folder):
    with bench.ranks(folder, own={1: ["optimizer.lr=0.5"]}) as ranks:
        ranks.start()
        for rank in (0, 1):
            says(ranks, rank, r"settings: rank 1 of 2 differs from rank 0: line \d+ is '.*lr: 0.5' on rank 1")


@case("build: another on rank 1")
def unlike_builds(bench, folder):
    folder.mkdir()
    version = subprocess.run([bench.octet, "--version"], capture_output=True, text=True, check=True).stdout
    commit = re.search(r"commit ([^)]*)", version)[1].encode()
    other = folder / "octet"
    other.write_bytes(bench.octet.read_bytes().replace(commit, b"x" * len(commit)))
    other.chmod(0o755)
    with bench.ranks(folder, program={1: other}) as ranks:
        ranks.start()
        for rank in (0, 1):
            says(ranks, rank, rf"rank 1 on \S+ has build 'octet .*commit x+\)")


@case("mesh: of another number of ranks than were started")
def unlike_mesh(bench, folder):
    with bench.ranks(folder, ["parallel.data=4"]) as ranks:
        ranks.start()
        for rank in (0, 1):
            says(ranks, rank, r"(2 ranks; .* are 4: start 4, or|are 4 ranks, but there are 2 ranks.*: want 4, or) ")


@case("rendezvous: ranks that never come")
def missing_ranks(bench, folder):
    with bench.ranks(folder, ["parallel.data=4", "parallel.timeout=1"], size=4) as ranks:
        ranks.start([0, 2])
        for rank in (0, 2):
            says(ranks, rank, rf"rank 0 on \S+ has waited 5 s at port {ranks.port} for ranks 1, 3 of 4: start all ranks")


@case("stranger: at the control port")
def stranger(bench, folder):
    with bench.ranks(folder) as ranks:
        ranks.start([0])

        def talk():
            try:
                with socket.create_connection(("127.0.0.1", ranks.port), 5) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    return connection.recv(1) == b""
            except ConnectionError:
                return False

        wait_until(talk, "rank 0 drops a stranger")
        ranks.start([1])
        ranks.finish()
        assert "was dropped: it sent a message" in ranks.text(0), ranks.text(0)
    bench.goes_on(folder)


def stopped_well(bench, folder, ranks):
    """All ranks have ended with one checkpoint of the same step, from which the run goes on."""
    ranks.finish()
    checkpoint = newest_checkpoint(folder / "out")
    for rank in (0, 1):
        assert f"stopped at step {int(checkpoint.name[5:])}," in ranks.text(rank), ranks.text(rank)
    run_threads(bench.octet, folder, [*bench.common, f"train.steps={int(checkpoint.name[5:]) + 1}", "out=out"])


@case("SIGTERM: to rank 0", [0])
@case("SIGTERM: to rank 1", [1])
@case("SIGTERM: to all", [0, 1])
def terminated(bench, folder, receivers):
    with bench.ranks(folder, ["train.steps=1G", "checkpoint.interval=0"]) as ranks:
        ranks.start()
        wait_until(lambda: steps_done(folder / "out") > 2, "steps")
        for rank in receivers:
            ranks.send(rank, signal.SIGTERM)
        stopped_well(bench, folder, ranks)


@case("SIGTERM: twice, from a launcher that passes on what all have got")
def terminated_twice(bench, folder):
    with bench.ranks(folder, ["train.steps=1G", "checkpoint.interval=0"]) as ranks:
        ranks.start()
        wait_until(lambda: steps_done(folder / "out") > 2, "steps")
        ranks.send(1, signal.SIGSTOP)  # so that no checkpoint is written between the two
        ranks.wait_stopped(1)
        for _ in range(2):
            ranks.send(0, signal.SIGTERM)
            ranks.wait_taken(0, signal.SIGTERM)
        ranks.send(1, signal.SIGCONT)
        stopped_well(bench, folder, ranks)


@case("SIGTERM: again and again, while a rank cannot stop")
def terminated_by_force(bench, folder):
    with bench.ranks(folder, ["train.steps=1G"]) as ranks:
        ranks.start()
        wait_until(lambda: steps_done(folder / "out") > 2, "steps")
        ranks.send(1, signal.SIGSTOP)
        ranks.wait_stopped(1)
        began = time.monotonic()

        def ended():
            ranks.send(0, signal.SIGTERM)
            return ranks.processes[0].poll() is not None

        wait_until(ended, "rank 0 ended")
        assert ranks.end(0) == -signal.SIGTERM and 2 < time.monotonic() - began < 10, ranks.text(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, what in (("octet", "the program"), ("text", "for a corpus"), ("fault", "the library of fault.cc")):
        parser.add_argument(name, type=lambda path: pathlib.Path(path).resolve(), help=what)
    parser.add_argument("--only", default="", help="cases with this word in their names")
    parser.add_argument("--all", action="store_true", help="also ranks that stop in each phase of a checkpoint")
    args = parser.parse_args()
    wanted = [name for name in CASES if args.only in name and (args.all or not re.match(r"stop: .*(while|before)", name))]
    wanted.sort(key=lambda name: not name.startswith(("stop", "rendezvous", "SIGTERM: again")))  # the slowest first
    failed = []
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(8) as pool:
        bench = Bench(args.octet, args.text, args.fault, pathlib.Path(work))

        def run(index, name):
            started = time.monotonic()
            try:
                CASES[name](bench, bench.work / f"case_{index}")
                print(f"passed: {name} ({time.monotonic() - started:.1f} s)", flush=True)
            except AssertionError as error:
                failed.append(name)
                print(f"FAILED: {name}: {error}", flush=True)

        for done in [pool.submit(run, index, name) for index, name in enumerate(wanted)]:
            done.result()
    sys.exit(f"{len(failed)} of {len(wanted)} cases have failed" if failed else 0)


if __name__ == "__main__":
    main()
