#!/usr/bin/env python3
"""Stages of `octet train` as processes without MPI, exchanging over rank 0's control plane: the files of one rank, or of the
same mesh as threads, byte for byte; fewer ranks than before. Usage: pipeline_ranks_test.py OCTET TEXT."""

import pathlib
import sys
import tempfile

from rank_runs import STAGES, Ranks, make_corpus, newest_checkpoint, run_threads, states

STEPS = 3
ONE = ["parallel.pipeline=1", "parallel.data=1", "parallel.shard=none"]
MESHES = {  # settings, number of ranks, whose states they must end with: one rank's, or those of other settings as threads
    "two": (["parallel.data=1", "parallel.shard=none"], 2, ONE),
    "four": (["parallel.pipeline=4", "parallel.data=1", "parallel.shard=none"], 4, ONE),
    "interleaved": (["parallel.chunks=2", "parallel.data=1", "parallel.shard=none"], 2, ONE),
    "interleaved_data": (["parallel.chunks=2", "parallel.shard=gradients"], 4, ["parallel.pipeline=1", "parallel.shard=gradients"]),
    "all": (["parallel.tensor=2", "parallel.sequence=true"], 8, ["parallel.tensor=2", "parallel.sequence=true"]),
}


def main():
    octet, text = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        common = [f"data.train={make_corpus(octet, text, work)}", f"train.steps={STEPS}", *STAGES]
        expected = {}
        for name, (settings, size, reference) in MESHES.items():
            key = " ".join(reference)
            if key not in expected:
                run_threads(octet, work, [*common, *reference, f"out=whole_{len(expected)}"])
                expected[key] = states(newest_checkpoint(work / f"whole_{len(expected)}"))
            with Ranks(work / name, octet, [*common, *settings, "out=out"], size=size) as ranks:
                ranks.start()
                ranks.finish()
            assert states(newest_checkpoint(work / name / "out")) == expected[key], f"{name}: other files than with {key}"
            print(f"passed: {name}", flush=True)
        # Where a rank is missing, its data rank is: the stages stay.
        restarted = [*common, f"train.steps={STEPS + 1}", "parallel.restarts=1", f"out={work}/interleaved_data/out"]
        with Ranks(work / "fewer", octet, restarted, size=3) as ranks:
            ranks.start()
            ranks.finish()
        log = (work / "interleaved_data/out/log.jsonl").read_text()
        assert "parallel.pipeline=2 parallel.tensor=1 parallel.data=1" in log, log
        print("passed: fewer", flush=True)


if __name__ == "__main__":
    main()
