#!/usr/bin/env python3
"""octet tune train on a target file of CPUs: the file it writes runs, --measure runs the best and goes on where it was,
--evaluate answers rows, errors name what would do.
Usage: tune_test.py OCTET TEXT"""

import json
import pathlib
import subprocess
import sys
import tempfile

TARGET = """name: small-cpu
device: cpu
memory_bytes: 2000000000
bytes_per_second: 1e10
link_bytes_per_second: 1e9
link_latency: 1e-5
bf16_flops: 5e10
f32_flops: 5e10
"""
MODEL = ["model.architecture=gpt2", "model.hidden=64", "model.layers=2", "model.heads=4", "model.vocab_size=512",
         "data.sequence_length=64", "train.global_batch=8", "precision.recipe=fp32", "train.device=cpu",
         "train.threads=1", "parallel.pipeline=1", "parallel.context=1"]


def main():
    octet, text = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)

        def run(*words, fails=False, text=None):
            done = subprocess.run([octet, *words], cwd=work, capture_output=True, text=True, input=text, timeout=300)
            assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
            return done.stderr if fails else done.stdout

        (work / "cpu.txt").write_text(TARGET)
        (work / "text").write_text(text.read_text()[:60000])
        run("tokenizer", "train", "--vocab-size", "300", "--out", "tok", "text")
        run("data", "--tokenizer", "tok", "--out", "corpus", "text")
        tune = ["tune", "train", *MODEL, "data.train=corpus", "--target", "cpu.txt"]

        found = json.loads(run(*tune, "--gpus", "2", "--json", "--out", "best.yaml"))
        best = found["best"][0]
        assert best["planned_whole"] and best["memory_bytes"] <= found["memory_limit"], best
        said = run("train", "best.yaml", "train.steps=2", "out=run")
        assert "finished at step 2" in said, said

        measure = [*tune, "--gpus", "1", "--measure", "3", "--measure-steps", "4", "--measure-folder", "proof",
                   "--rows", "3", "--out", "proved.yaml"]
        said = run(*measure)
        assert "measured  3 of the best" in said and said.count("s measured,") == 3, said
        rows = (work / "proof/measured.jsonl").read_text().splitlines()
        assert len(rows) == 3 and all(json.loads(row)["step_seconds"] > 0 for row in rows), rows
        assert run(*measure).count("measured before") == 3
        (work / "proof/measured.jsonl").write_text(rows[0] + "\n")
        said = run(*measure)
        assert said.count("measured before") == 1, said
        fastest = said.split("the fastest first\n")[1].splitlines()[0].split("micro_batch=")[1].split()[0]
        assert f"micro_batch: {fastest}" in (work / "proved.yaml").read_text(), said

        rows = [{"id": "a", "gpus": 1, "model.size": "gpt2-124m", "precision.recipe": "fp32"},
                {"id": "b", "gpus": 1, "model.sise": "gpt2-124m"}]
        answers = [json.loads(line) for line in run("tune", "train", "--evaluate", "-", "--target", "cpu.txt",
                                                    text="".join(json.dumps(row) + "\n" for row in rows)).splitlines()]
        assert [answer["id"] for answer in answers] == ["a", "b"], answers
        assert answers[0]["memory_bytes"] > 1e9 and "model.size" in answers[1]["reason"], answers

        assert "bytes are missing" in run("tune", "train", "model.size=gpt2-1558m", "train.global_batch=8", "--gpus", "1",
                                          "--target", "cpu.txt", fails=True)
        assert "train.global_batch is not set" in run("tune", "train", "model.size=gpt2-124m", "--gpus", "1", fails=True)
        assert "--gpus is not given" in run("tune", "train", "model.size=gpt2-124m", fails=True)
        assert "says no rates" in run(*tune[:-1], "cpu", "--gpus", "1", fails=True)
        assert "days" in run("plan", "model.size=gpt2-124m", "--target", "h200", "--tokens", "10G", "--price", "2")
    print("ok")


if __name__ == "__main__":
    main()
