#!/usr/bin/env python3
"""octet eval --tasks on a model of a few steps: table, results, samples, options that do not go together, ranks; the
other forms of octet eval beside it.
Usage: eval_tasks_test.py OCTET TEXT"""

import json
import pathlib
import subprocess
import sys
import tempfile

from served import train_adapter, train_tiny

TASK = """task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: docs.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: options
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


def check_adapters(call, octet, task, lora, prompts, text):
    """Beside its base an adapter's numbers are those of the merged model; virtual tokens are scored behind."""
    short = lora.parent / "adapted.txt"
    short.write_text("The table of the run. " * 8)

    def sums(*words):
        samples = lora.parent / "adapter_samples.jsonl"
        call("--tasks", *task, "--samples", samples, *words)
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        return [value for line in lines for value, _ in line["filtered_resps"]]

    def merged(*words):
        done = subprocess.run([octet, "eval", lora, *words, "--device", "cpu"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    plain, beside, behind = sums(), sums("--adapter", lora), sums("--adapter", f"p={prompts}")
    assert max(abs(a - b) for a, b in zip(plain, beside)) > 1e-2 < max(abs(a - b) for a, b in zip(plain, behind))
    alone = merged("--tasks", *task, "--json")["results"]["mine"]
    result = json.loads(call("--tasks", *task, "--adapter", lora, "--json"))
    assert abs(result["results"]["mine"]["acc,none"] - alone["acc,none"]) < 1e-9, (result, alone)
    assert "lora" in result["config"]["adapter"], result["config"]
    loss = json.loads(call(short, "--adapter", lora, "--json"))["loss"]
    assert abs(loss - merged(short, "--json")["loss"]) < 1e-5 and loss != json.loads(call(short, "--json"))["loss"]
    assert "virtual tokens" in call(short, "--adapter", prompts, fails=True)
    assert "want one" in call("--tasks", *task, "--adapter", lora, "--adapter", prompts, fails=True)


def main():
    octet, text = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        run = train_tiny(octet, text, work)
        (work / "mine.yaml").write_text(TASK)
        docs = [{"q": "The table of the", "options": ["run", " steps and"], "gold": i % 2} for i in range(5)]
        (work / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
        task = [work / "mine.yaml"]

        def call(*words, fails=False):
            done = subprocess.run([octet, "eval", run, *words, "--device", "cpu"], capture_output=True, text=True)
            assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
            return done.stderr if fails else done.stdout

        table = call("--tasks", *task)
        assert table.split()[:6] == ["task", "shots", "filter", "metric", "value", "stderr"], table
        assert "acc_norm" in table, table
        whole = json.loads(call("--tasks", *task, "--json"))
        values = whole["results"]["mine"]
        assert 0.4 - 1e-9 <= values["acc,none"] <= 0.6 + 1e-9 and values["sample_len"] == 5, values
        assert whole["n-samples"]["mine"] == {"original": 5, "effective": 5}, whole
        printed = call("--tasks", *task, "--limit", "3", "--json", work / "out.json", "--samples", work / "samples.jsonl")
        assert printed.startswith("task"), printed
        assert json.loads((work / "out.json").read_text())["n-samples"]["mine"]["effective"] == 3
        samples = [json.loads(line) for line in (work / "samples.jsonl").read_text().splitlines()]
        assert [sample["doc_id"] for sample in samples] == [0, 1, 2], samples
        first = samples[0]
        assert first["arguments"] == [["The table of the", " run"], ["The table of the", "  steps and"]], first
        assert all(isinstance(greedy, bool) and value < 0 for value, greedy in first["filtered_resps"]), first
        ranks = json.loads(call("--tasks", *task, "--json", "--tensor", "2"))["results"]
        assert ranks["mine"]["acc,none"] == values["acc,none"], ranks

        lora, prompts = (train_adapter(octet, work, *words) for words in (["lora"], ["prompt_tuning", "adapter.virtual_tokens=4"]))
        check_adapters(call, octet, task, lora, prompts, text)

        assert "--data DIR" in call("--tasks", "hellaswag", fails=True)
        assert "nearest: piqa" in call("--tasks", "pikqa", "--data", work, fails=True)
        assert "excludes" in call("--tasks", *task, "--stride", "4", fails=True)
        assert "--tasks" in call(text, "--shots", "2", fails=True)
        assert "no chat template" in call("--tasks", *task, "--chat", fails=True)
        assert "context" in call("--tasks", *task, "--max-length", "1000000", fails=True)
        short = work / "short"
        short.write_text("The table of the run. " * 8)
        losses = json.loads(call("--json", short))  # a text behind --json, without tasks
        assert losses == json.loads(call(short, "--json")) and losses["tokens"] > 10, losses


if __name__ == "__main__":
    main()
