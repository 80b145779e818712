#!/usr/bin/env python3
"""eval.tasks of octet train: the numbers of octet eval --tasks on the checkpoint, whatever the layout of batches and
ranks, for models and adapters; logs; what is refused.
Usage: train_tasks_test.py OCTET TEXT"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from rank_runs import SETTINGS
from served import train_tiny

FORM = "task: {0}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {0}.jsonl}}}}\ntest_split: test\n"
CHOICES = """output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: options
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
LAST = """output_type: loglikelihood
doc_to_text: "{{text.rsplit(' ', 1)[0]}}"
doc_to_target: "{{' ' + text.rsplit(' ', 1)[1]}}"
target_delimiter: ""
metric_list: [{metric: perplexity}, {metric: acc}]
"""
PAGES = """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
REPLIES = "output_type: generate_until\ndoc_to_text: \"{{q}}\"\ndoc_to_target: \"a\"\nmetric_list: [{metric: exact_match}]\n"


def write_tasks(work, text):
    docs = {"choices": [{"q": f"The table of {i}", "options": [" run" * (1 + i % 3), " and so on", "."], "gold": i % 3}
                        for i in range(9)],
            "last": [{"text": " ".join(text.split()[5 * i:5 * i + 4 + i % 4] + ["|"] * (i % 2))} for i in range(40)],
            "pages": [{"page": text[1000:1900]}, {"page": "A short one."}],
            "replies": [{"q": "x"}]}
    for name, form in (("choices", CHOICES), ("last", LAST), ("pages", PAGES), ("replies", REPLIES)):
        (work / f"{name}.yaml").write_text(FORM.format(name) + form)
        (work / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs[name]))
    (work / "both.yaml").write_text("group: both\ntask: [choices, last]\naggregate_metric_list: [{metric: acc}]\n")


def main():
    octet, text = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        train_tiny(octet, text, work)
        write_tasks(work, text.read_text())
        tasks = ["both.yaml", "pages.yaml"]
        plain = [word for word in SETTINGS if not word.startswith("parallel.")]

        def train(out, *settings, base=plain, fails=False):
            words = [octet, "train", *base, "precision.recipe=fp32", "train.steps=4", "data.train=corpus", f"out={out}",
                     "eval.interval=2", *settings]
            done = subprocess.run(words, cwd=work, capture_output=True, text=True)
            assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
            if fails:
                return done.stderr
            log = [json.loads(line) for line in (work / out / "log.jsonl").read_text().splitlines()]
            lines = [line for line in log if line["kind"] == "tasks"]
            assert [line["step"] for line in lines] == [0, 2, 4], lines
            assert f"step 4: tasks choices/acc {lines[2]['choices/acc']:.4f}, " in done.stderr, done.stderr
            return lines

        def scores(line):
            return {key: value for key, value in line.items() if key not in ("kind", "step", "seconds", "time")}

        def evaluated(*words, length=32):
            done = subprocess.run([octet, "eval", *words, "--tasks", *tasks, "--max-length", str(length), "--bootstrap", "0", "--json",
                                   "--device", "cpu"], cwd=work, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return {f"{task}/{key.split(',')[0]}": value
                    for task, results in json.loads(done.stdout)["results"].items() for key, value in results.items()
                    if "," in key and "_stderr" not in key}

        def same(line, expected, far=1e-4):
            ours = scores(line)
            assert set(ours) == set(expected) and len(ours) == 7, (ours, expected)
            for name, value in expected.items():
                exact = "/acc" in name
                assert abs(ours[name] - value) <= (1e-9 if exact else far * value), (name, ours[name], value)

        given = f"eval.tasks={','.join(tasks)}"
        lines = train("one", given, "train.micro_batch=3", "train.global_batch=6", "optimizer.lr=0.01")
        assert scores(lines[1]) != scores(lines[2])
        expected = evaluated("one")
        same(lines[2], expected)
        assert 0 < expected["last/acc"] < 1, "some last characters are the likeliest, some are not"
        events = b"".join(path.read_bytes() for path in (work / "one/events").rglob("*") if path.is_file()) \
            if (work / "one/events").is_dir() else (work / "one/events").read_bytes()
        assert b"eval/choices/acc" in events and b"eval/both/acc" in events
        # Several texts in a row; ranks that share batches and models; validation beside the tasks.
        batch = ("train.micro_batch=3", "train.global_batch=6", "optimizer.lr=0.01")
        same(train("packed", given, *batch, "data.separate_documents=true")[2], evaluated("packed"))
        shared = train("ranks", given, "train.micro_batch=1", "train.global_batch=6", "optimizer.lr=0.01", "parallel.data=2",
                       "parallel.tensor=2", "parallel.shard=parameters", "data.validation=corpus", "eval.tokens=64")
        same(shared[2], evaluated("ranks"))
        same(shared[2], expected, 1e-3)
        limited = train("limited", given, *batch, "eval.tasks_limit=3", "eval.tasks_shots=0")
        assert limited[2]["pages/bits_per_byte"] > 0 and limited[2]["last/acc"] in (0, 1 / 3, 2 / 3, 1)

        base = [word for word in plain if not word.startswith("model.")] + ["model.from=run"]
        for method, length, words in (("lora", 32, []), ("prompt_tuning", 24, ["adapter.virtual_tokens=5"])):
            line = train(method, given, *batch, f"adapter.method={method}", f"data.sequence_length={length}", *words,
                         base=base)[2]
            same(line, evaluated("run", "--adapter", method, length=length))

        (work / "last.jsonl").write_text(json.dumps({"text": "a " + "longer" * 40}) + "\n")
        told = train("no", given, fails=True)
        assert "more than the maximum length 32" in told and "train 0/4" not in told, told
        told = train("no", "eval.tasks=replies.yaml", fails=True)
        assert "replies is of output_type generate_until" in told and "octet eval RUN --tasks replies" in told, told
        assert not (work / "no/log.jsonl").exists()
        assert "nearest: piqa" in train("no", "eval.tasks=pikqa", fails=True)
        assert "eval.tasks names none" in train("no", "eval.tasks_limit=3", fails=True)
        assert "octet eval --tasks" in train("no", given, "parallel.pipeline=2", fails=True)


if __name__ == "__main__":
    main()
