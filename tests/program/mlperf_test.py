#!/usr/bin/env python3
"""octet mlperf from the command line: exit codes, what is refused, ranks that a launcher starts, signals, and that the
files pass the public checkers where python3 has mlperf_logging.
Usage: mlperf_test.py OCTET TEXT"""

import importlib.util
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from rank_runs import PATIENCE, SETTINGS, Ranks, make_corpus


def main():
    octet, text = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        make_corpus(octet, text, work)
        base = [word for word in SETTINGS if not word.startswith(("parallel.", "eval."))]
        base += ["data.train=corpus", "data.validation=corpus", "precision.recipe=fp32", "eval.tokens=512",
                 "eval.interval=2", "optimizer.lr=0.01", "optimizer.min_lr=0", "optimizer.warmup_steps=2"]

        def words(out, *more):
            return [octet, "mlperf", "gpt3", *base, "--platform", "a box", "--out", out, *more]

        def run(code, command):
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == code, (command, done)
            return done.stdout + done.stderr

        # Exit codes: 0 where all runs reach the target, 2 where one did not, 1 for what is refused.
        told = run(0, words("out", "train.steps=20", "--target", "5.5", "--runs", "2", "--json"))
        summary = json.JSONDecoder().raw_decode(told, told.index("[\n"))[0][0]
        assert [run["status"] for run in summary["runs"]] == ["success"] * 2, told
        assert not any(run["faults"] for run in summary["runs"]), told
        assert "  result: " in run(0, [octet, "mlperf", "summary", "out", "--faults"])
        assert "aborted" in run(2, words("never", "train.steps=3", "--target", "0.01", "--runs", "1"))
        assert "results are not overwritten" in run(1, words("out", "train.steps=4", "--target", "5", "--runs", "3"))
        assert "no workload of this build trains it" in run(1, [octet, "mlperf", "unet3d", "--runs", "3", "a=b"])
        told = run(1, words("closed", "--division", "closed", "--clear-caches"))
        assert "model.layers is 2 (the reference's: 96)" in told, told
        assert not (work / "closed").exists()

        # Of ranks that a launcher starts, in run after run, the first writes.
        two = words("ranks", "train.steps=20", "--target", "5.5", "--runs", "2", "parallel.data=2")
        with Ranks(work / "two", octet, two[2:], command=["mlperf"], cwd={0: work, 1: work}) as ranks:
            for rank, process in ranks.start().processes.items():
                assert process.wait(PATIENCE) == 0, ranks.text(rank)
        logs = sorted((work / "ranks/results/a_box/gpt3").iterdir())
        assert [log.name for log in logs] == ["result_0.txt", "result_1.txt"], logs
        one = (work / "out/results/a_box/gpt3/result_0.txt").read_text()

        def steps(log):
            return [line.split('"epoch_num": ')[1] for line in log.splitlines() if "eval_accuracy" in line]

        assert steps(one) == steps(logs[0].read_text()), logs

        # SIGTERM aborts the run and leaves out those behind it; SIGKILL leaves whole lines.
        for name in ("SIGTERM", "SIGKILL"):
            command = words(name, "train.steps=100000", "--target", "0.01", "--runs", "3")
            process = subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            results = work / name / "results/a_box/gpt3"
            deadline = time.monotonic() + PATIENCE
            while not (results / "result_0.txt").exists() or "eval_stop" not in (results / "result_0.txt").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(getattr(signal, name))
            assert process.wait(PATIENCE) == (2 if name == "SIGTERM" else -signal.SIGKILL)
            assert len(list(results.iterdir())) == 1
            log = (results / "result_0.txt").read_text()
            for line in log.splitlines():
                if line.strip():
                    json.loads(line.strip().removeprefix(":::MLLOG "))
            assert ('"status": "aborted"' in log) == (name == "SIGTERM"), log

        if importlib.util.find_spec("mlperf_logging") is None:
            print("python3 has no mlperf_logging (pip install mlperf-logging==4.1.68): its checkers were not run")
            return
        from mlperf_logging.system_desc_checker import system_desc_checker
        valid = system_desc_checker.check_system_desc(work / "out/systems/a_box.json", "training", "3.0.0")
        assert valid[0] and valid[1] == "a box", valid


if __name__ == "__main__":
    main()
