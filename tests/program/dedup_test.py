"""octet data dedup, clean and decontaminate as programs: killed at any time and started again, in shards as scripts/dedup_slurm.sh runs them (here by
an sbatch that is a loop), the same files each time; wrong options; files named
as subcommands. Usage: dedup_test.py OCTET REPOSITORY"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

SBATCH = """#!/usr/bin/env bash
# Runs a job at once: each task of its array one after the other.
tasks=(0) command="" after=""
while [ $# -gt 0 ]; do
  case $1 in
    --array=0-*) mapfile -t tasks < <(seq 0 "${1##*-}") ;;
    --dependency=afterok:*) after=${1##*:} ;;
    --wrap) command=$2; shift ;;
  esac
  shift
done
[ -z "$after" ] || [ -e "$JOBS/$after" ] || { echo "no job $after" >&2; exit 1; }
for task in "${tasks[@]}"; do SLURM_ARRAY_TASK_ID=$task bash -c "$command" >&2 || exit 1; done
job=$(($(ls "$JOBS" | wc -l) + 1))
touch "$JOBS/$job"
echo "$job;cluster"
"""


def make_inputs(folder):
    rng, texts = random.Random(7), []
    for part in range(4):
        with open(folder / f"part {part}.jsonl", "w", encoding="utf-8") as out:
            for number in range(3000):
                words = [f"w{rng.randrange(4000)}" for _ in range(rng.randint(30, 200))]
                if texts and rng.random() < 0.2:
                    words = list(rng.choice(texts))
                    words[rng.randrange(len(words))] = "changed"
                texts.append(words)
                out.write(json.dumps({"id": f"{part}/{number}", "text": " ".join(words)}) + "\n")
    return sorted(str(path) for path in folder.glob("*.jsonl"))


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != "report.json"}


def main(octet, repository):
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        (root / "in").mkdir()
        inputs = make_inputs(root / "in")

        def dedup(*words, **options):
            return subprocess.run([octet, "data", "dedup", *words], capture_output=True, text=True, **options)

        done = dedup(*inputs, "--out", root / "whole", "--json", check=True)
        report = json.loads(done.stdout)
        assert report["documents"] == 12000 and report["near"] > 1000 and len(report["files"]) == 4, report
        whole = files_of(root / "whole")
        assert len(whole) == 8 and sum(file.count(b"\n") for file in whole.values()) == 12000, list(whole)

        def kill_until_done(*words):
            kills, wait = 0, 0.02
            while True:  # a little later each time
                process = subprocess.Popen([octet, "data", *words, "--threads", "1"], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                try:
                    assert process.wait(wait) == 0
                    break
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    kills, wait = kills + 1, wait * 1.05
            assert kills >= 3, (words, kills)
            return kills

        kills = kill_until_done("dedup", *inputs, "--out", root / "killed")
        killed = files_of(root / "killed")
        assert killed == whole, ("killed and started again: other files", killed.keys() ^ whole.keys())
        again = dedup(*inputs, "--out", root / "killed", check=True)
        assert "of 12000 documents kept" in again.stdout, again

        rules = ("--no-gopher-quality", "--no-c4", "--no-fineweb", "--gopher-top-2gram", "0.03")
        done = subprocess.run([octet, "data", "clean", *inputs, "--out", root / "clean", "--json", *rules],
                              capture_output=True, text=True, check=True)
        counts = json.loads(done.stdout)["counts"]
        assert counts["documents"] == 12000 and 0 < counts["dropped.gopher_top_2gram"] < 6000, counts
        kill_until_done("clean", *inputs, "--out", root / "clean_killed", *rules)
        assert files_of(root / "clean_killed") == files_of(root / "clean"), "clean, killed and started again: other files"

        test = root / "quiz.txt"
        with open(inputs[2], encoding="utf-8") as lines:
            test.write_text("".join(" ".join(json.loads(line)["text"].split()[5:25]) + "\n" for line in list(lines)[:50]))
        apart = ("--test", f"quiz={test}")
        done = subprocess.run([octet, "data", "decontaminate", *inputs, "--out", root / "apart", "--json", *apart],
                              capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        assert report["counts"]["documents"] == 12000 and 50 <= report["counts"]["dropped.contaminated"] < 500, report
        assert report["tests"][0]["name"] == "quiz" and report["tests"][0]["texts"] == 50, report
        kill_until_done("decontaminate", *inputs, "--out", root / "apart_killed", *apart)
        assert files_of(root / "apart_killed") == files_of(root / "apart"), "decontaminate, killed: other files"
        for shard in (("--shard", "1/2"), ("--shard", "0/2"), ()):
            subprocess.run([octet, "data", "decontaminate", *inputs, "--out", root / "apart_shards", *apart, *shard],
                           capture_output=True, check=True)
        assert files_of(root / "apart_shards") == files_of(root / "apart"), "decontaminate, in shards: other files"

        done = dedup(root / "clean", "--out", root / "both", "--json", check=True)  # without dropped/ and report.json
        assert json.loads(done.stdout)["documents"] == counts["kept"], (done, counts)

        (root / "dedup").write_text("some text\n")
        subprocess.run([octet, "tokenizer", "train", "--kind", "char", "--out", "tok", "./dedup"], cwd=root, check=True,
                       capture_output=True)
        subprocess.run([octet, "data", "./dedup", "--tokenizer", "tok", "--out", "set"], cwd=root, check=True, capture_output=True)
        assert (root / "set.bin").stat().st_size > 0

        (root / "bin").mkdir()
        (root / "jobs").mkdir()
        (root / "bin/sbatch").write_text(SBATCH)
        (root / "bin/sbatch").chmod(0o755)
        environment = {**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}", "JOBS": str(root / "jobs"), "OCTET": octet}
        begin = time.monotonic()
        subprocess.run([pathlib.Path(repository) / "scripts/dedup_slurm.sh", "3", "--time=1:00:00", "--",
                        *inputs, "--out", root / "sharded"], env=environment, check=True, capture_output=True)
        print(f"{kills} kills; sharded in {time.monotonic() - begin:.1f} s")
        assert files_of(root / "sharded") == whole, "sharded: other files"
        assert len(list((root / "jobs").iterdir())) == 5

        for words, message in [(("--shard", "0/2"), "--shard 0/2: with --stage"),
                               (("--stage", "pairs", "--shard", "2/2"), "want I/N"),
                               (("--stage", "pairs", "--shard", "x/2"), "want I/N"),
                               (("--rows", "0"), "--rows"), (("--verify", "1.5"), "--verify"),
                               (("--memory", "1"), "--memory 1 is less")]:
            wrong = dedup(*inputs, "--out", root / "wrong", *words)
            assert wrong.returncode != 0 and message in wrong.stderr, (words, wrong)


main(os.path.abspath(sys.argv[1]), sys.argv[2])
