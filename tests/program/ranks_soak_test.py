#!/usr/bin/env python3
"""A run whose ranks are killed again and again ends with the checkpoint of one that nothing disturbs, byte for byte.

Every --every seconds one of two ranks (CPU, processes) is killed; the other has to end within 10 s, naming it; then both are
started again, as a launcher would, and go on from the newest sound checkpoint. After --minutes SIGTERM ends the run; as many
steps of the same ranks as threads, without kills, are what it is compared with."""

import argparse
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
        common = [f"data.train={make_corpus(octet, args.text, work)}", "train.steps=1G"]
        settings = [*common, "checkpoint.interval=50", f"out={work}/out"]
        log, begin = work / "out" / "log.jsonl", time.monotonic()
        next_kill, bounds, killed = begin + args.every, [], [0, 0]
        while True:
            with Ranks(work / "ranks", octet, settings) as ranks:
                size = log.stat().st_size if log.exists() else 0
                ranks.start()
                wait_until(lambda: log.exists() and log.stat().st_size > size + 1000, f"steps after {len(bounds)} kills")
                last = next_kill > begin + 60 * args.minutes
                while time.monotonic() < (begin + 60 * args.minutes if last else next_kill):
                    time.sleep(0.05)
                victim = chance.randrange(2)
                if last:
                    ranks.send(victim, signal.SIGTERM)
                    ranks.finish()
                    break
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
        saved = newest_checkpoint(work / "out")
        steps = int(saved.name[5:])
        undisturbed = [octet, "train", *SETTINGS, *common, f"checkpoint.interval={steps}", "out=whole"]
        whole = subprocess.Popen([str(word) for word in undisturbed], cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = work / "whole" / "checkpoints" / saved.name
        while not wanted.exists() and whole.poll() is None:
            time.sleep(0.05)
        whole.kill()
        whole.wait()
        resumed = log.read_text().count('"kind":"resume"')
        if resumed == 0 or states(saved) != states(wanted):
            sys.exit(f"after {len(bounds)} kills, {resumed} times resumed, {saved.name} is not that of the run without kills")
        print(f"{steps} steps in {minutes:.1f} minutes; killed: rank 0 {killed[0]} times, rank 1 {killed[1]} times, {resumed} times "
              f"resumed; the other ended after {max(bounds):.2f} s at most (median {statistics.median(bounds):.2f}); equal byte for byte")


if __name__ == "__main__":
    main()
