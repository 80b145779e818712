#!/usr/bin/env python3
"""Ranks of `octet train` under mpirun: the files of ranks as threads, byte for byte; what is said of one that is killed or
stopped, and how soon the others have ended; SIGTERM to one. Usage: ranks_mpi_test.py OCTET TEXT MESH. Exit status 77: no MPI."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from rank_runs import SETTINGS, STAGES, make_corpus, newest_checkpoint, run_threads, state_of, states, steps_done, wait_until

MESHES = {  # ranks; settings beside parallel.data=2
    "2": (2, []),
    "8": (8, ["parallel.tensor=2", "parallel.context=2"]),
    "stages": (8, [*STAGES, "parallel.chunks=2", "parallel.tensor=2"]),
}
TIMEOUT = 3


def start(octet, folder, ranks, settings):
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with open(folder / "log", "wb") as log:
        return subprocess.Popen([str(w) for w in ["mpirun", "-n", ranks, "--oversubscribe", octet, "train", *SETTINGS, *settings]],
                                stdout=log, stderr=log, cwd=folder, env=environment)


def end(process, folder, seconds):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"mpirun has not ended after {seconds} s:\n{(folder / 'log').read_text()}") from None


def strike(octet, folder, ranks, common, victim, number, want):
    """A signal to one of the ranks: the others end in time, and what is said holds `want`; mpirun's exit status, None where it
    is not waited for: Open MPI was seen to wait for more than a minute for a child that is stopped."""
    folder.mkdir()
    process = start(octet, folder, ranks, [*common, "train.steps=1G", f"parallel.timeout={TIMEOUT}", "out=out"])
    wait_until(lambda: steps_done(folder / "out") > 0, "a step")
    # What rank 0 runs is told to seven others every 0.35 s: nothing but time shows that it was.
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 2 and steps_done(folder / "out") > 100 // ranks, "steps")
    children = [int(c) for task in pathlib.Path(f"/proc/{process.pid}/task").glob("*/children") for c in task.read_text().split()]
    struck = next(c for c in children if f"\0OMPI_COMM_WORLD_RANK={victim}\0" in
                  pathlib.Path(f"/proc/{c}/environ").read_text(errors="replace"))
    stops = number == signal.SIGSTOP
    said = lambda: (folder / "log").read_text().replace("\r", "\n")
    try:
        os.kill(struck, number)
        began = time.monotonic()
        wait_until(lambda: all(state_of(c) in "XZ" for c in children if c != struck), "the end of the other ranks",
                   TIMEOUT + 5 if stops else 10)
        print(f"rank {victim} of {ranks}, {number.name}: the others have ended after {time.monotonic() - began:.1f} s", flush=True)
        wait_until(lambda: re.search(want, said()), f"'{want}' in the log", 30)
        return None if stops else end(process, folder, 60)
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{said()}") from None
    finally:
        for pid in (*children, process.pid):
            if state_of(pid) not in "XZ":
                os.kill(pid, signal.SIGKILL)
        process.wait()


def main():
    octet, text = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    ranks, settings = MESHES[sys.argv[3]]
    if not (shutil.which("mpirun") and (octet.parent / "liboctet_mpi.so").exists()):
        print("skipped: there is no mpirun, or Octet was built without MPI (scripts/setup.sh test installs it)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        common = [f"data.train={make_corpus(octet, text, work)}", *settings]
        run_threads(octet, work, [*common, "train.steps=6", "out=threads"])
        process = start(octet, work, ranks, [*common, "train.steps=6", "out=mpi"])
        assert end(process, work, 60) == 0, (work / "log").read_text()
        assert states(newest_checkpoint(work / "mpi")) == states(newest_checkpoint(work / "threads")), "other files than by threads"
        for victim in (0, ranks - 1):
            for number, how in ((signal.SIGKILL, "has ended or closed its connection"), (signal.SIGSTOP, f"was silent for {TIMEOUT} s")):
                want = rf"octet: .*rank {victim} of {ranks} on \S+ {how}; it was in step \d+, graph (train|checkpoint) \(number \d+ of its run\)"
                assert strike(octet, work / f"{number.name}_{victim}", ranks, common, victim, number, want) != 0
        assert strike(octet, work / "terminated", ranks, common, ranks - 1, signal.SIGTERM, "") == 0
        assert newest_checkpoint(work / "terminated/out"), (work / "terminated/log").read_text()


if __name__ == "__main__":
    main()
