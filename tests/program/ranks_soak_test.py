#!/usr/bin/env python3
"""A run whose ranks are killed again and again ends with the checkpoint of one that nothing disturbs, byte for byte.

Every --every seconds one of two ranks (CPU, processes) is killed; the other has to end within 10 s, naming it; then both are
started again, as a launcher would, and go on from the newest sound checkpoint. The run is as long as --minutes allow."""

import argparse
import json
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from rank_runs import SETTINGS, Ranks, make_corpus, newest_checkpoint, states, wait_until

BOUND = 10  # seconds from a kill to the end of the last rank
LOST = re.compile(r"rank (\d) of 2 on \S+ has ended or closed its connection; it was in step \d+, graph \w+ \(number \d+ of its run\)")


def steps_a_second(octet, work, common):
    """Of two ranks that nothing disturbs."""
    with Ranks(work / "speed", octet, [*common, "train.steps=200", "out=out", "checkpoint.interval=0"]) as ranks:
        ranks.start().finish()
    lines = [json.loads(line) for line in (work / "speed/out/log.jsonl").read_text().splitlines()]
    return 1 / statistics.median(line["seconds"] for line in lines if line["kind"] == "step")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("octet")
    parser.add_argument("text")
    parser.add_argument("--every", type=float, default=120, help="seconds between kills")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1, help="of which rank is killed")
    args = parser.parse_args()
    octet = pathlib.Path(args.octet).resolve()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        common = [f"data.train={make_corpus(octet, args.text, work)}"]
        rate = steps_a_second(octet, work, common)
        steps = int(rate * 60 * args.minutes)
        common += [f"train.steps={steps}", f"checkpoint.interval={max(1, int(rate * args.every / 6))}", "checkpoint.keep=2"]
        whole = subprocess.Popen([str(w) for w in [octet, "train", *SETTINGS, *common, "out=whole"]], cwd=work,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        out, begin = work / "out", time.monotonic()
        next_kill, bounds, killed = begin + args.every, [], [0, 0]
        while True:
            with Ranks(work / "ranks", octet, [*common, f"out={out}"]) as ranks:
                log = out / "log.jsonl"
                size = log.stat().st_size if log.exists() else 0
                ranks.start()
                wait_until(lambda: log.exists() and log.stat().st_size > size + 1000 or ranks.processes[0].poll() == 0,
                           f"steps after start {len(bounds) + 1}")
                while time.monotonic() < next_kill and ranks.processes[0].poll() is None:
                    time.sleep(0.05)
                if ranks.processes[0].poll() is not None:
                    ranks.finish()
                    break
                victim = chance.randrange(2)
                ranks.send(victim, signal.SIGKILL)
                struck = time.monotonic()
                if ranks.end(1 - victim, BOUND) == 0:
                    raise AssertionError(f"rank {1 - victim} ended well after rank {victim} was killed")
                bounds.append(time.monotonic() - struck)
                said = [LOST.search(line) for line in ranks.errors(1 - victim)]
                if len(said) != 1 or not said[0] or int(said[0][1]) != victim:
                    raise AssertionError(f"rank {victim} was killed, rank {1 - victim} says:\n{ranks.text(1 - victim)}")
                killed[victim] += 1
                next_kill += args.every
        minutes = (time.monotonic() - begin) / 60
        if whole.wait() != 0 or not bounds:
            sys.exit(f"the run without kills ended with {whole.returncode}; {len(bounds)} kills")
        if states(newest_checkpoint(out)) != states(newest_checkpoint(work / "whole")):
            sys.exit(f"after {len(bounds)} kills the last checkpoint is another than that of the run without kills")
        print(f"{steps} steps in {minutes:.1f} minutes; killed: rank 0 {killed[0]} times, rank 1 {killed[1]} times; the other "
              f"ended after {max(bounds):.2f} s at most (median {statistics.median(bounds):.2f}); equal byte for byte")


if __name__ == "__main__":
    main()
