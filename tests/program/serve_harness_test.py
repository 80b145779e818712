#!/usr/bin/env python3
"""lm-evaluation-harness on `octet serve`, as docs/evaluation.md shows it, against `octet eval --tasks`.
Usage: serve_harness_test.py OCTET TEXT

Log-likelihoods of local-completions equal those of octet eval to 1e-3; replies of local-completions and, under the chat
template, of local-chat-completions are the same texts. Exit status 77: the package or the material is absent."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from served import Served, skip

try:
    import lm_eval  # noqa: F401
    import tenacity  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    skip(f"{error} (needs lm_eval[api], transformers)")

LOGLIKELIHOODS = ["dev_mc", "dev_mc_shots", "dev_last_word", "dev_pages"]
REPLIES = ["dev_sums"]


def samples_of(paths):
    """{(task, document, filter): (log-likelihoods or replies)}"""
    found = {}
    for path in paths:
        for line in path.read_text().splitlines():
            sample = json.loads(line)
            task = sample.get("task") or path.name.split("_2")[0].removeprefix("samples_")
            values = [value[0] if isinstance(value, list) else value for value in sample["filtered_resps"]]
            found[task, sample["doc_id"], sample["filter"]] = [
                float(value) if task not in REPLIES else value for value in values]
    return found


def main():
    octet = pathlib.Path(sys.argv[1]).resolve()
    shared = pathlib.Path(__file__).resolve().parents[3] / "shared/data"
    data = pathlib.Path(os.environ.get("OCTET_TEST_DATA") or shared) / "adapt"
    if not data.is_dir():
        skip("test material 'adapt' is absent: set OCTET_TEST_DATA to the folder that holds it")
    lm, tasks = data / "lm", data / "eval/tasks"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as name, Served(octet, lm, "--recipe", "fp32", "--served-model-name", "lm") as server:
        work = pathlib.Path(name)

        def ours(names, *words):  # the harness leaves a token for a reply, and scores no token beyond the context
            file = work / "ours.jsonl"
            subprocess.run([octet, "eval", lm, "--tasks", *[tasks / f"{task}.yaml" for task in names], "--max-length", "190",
                            "--bootstrap", "0", "--samples", file, "--device", "cpu", *words], check=True,
                           capture_output=True, text=True)
            return samples_of([file])

        def theirs(kind, names, route, *words):
            out = work / f"out_{kind}_{len(list(work.iterdir()))}"
            args = (f"model=lm,base_url={server.url}{route},tokenizer={lm},num_concurrent=4,max_length=192,"
                    "add_bos_token=True,max_retries=1")
            done = subprocess.run([sys.executable, "-m", "lm_eval", "--model", kind, "--include_path", tasks, "--tasks",
                                   ",".join(names), "--model_args", args, "--log_samples", "--output_path", out, *words],
                                  cwd=tasks, env=offline, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
            return samples_of(sorted(out.rglob("samples_*.jsonl")))

        expected, given = ours(LOGLIKELIHOODS), theirs("local-completions", LOGLIKELIHOODS, "/v1/completions")
        assert given.keys() == expected.keys() and len(given) > 20, (sorted(given), sorted(expected))
        worst = 0.0
        for key, values in expected.items():
            assert len(values) == len(given[key]), (key, values, given[key])
            for one, other in zip(values, given[key]):
                worst = max(worst, abs(one - other))
                assert abs(one - other) <= 1e-3, (key, values, given[key])
        print(f"{len(expected)} samples of log-likelihoods, at most {worst:.2g} apart")
        chat = ("--apply_chat_template", "--fewshot_as_multiturn", "True")
        for kind, route, words, own in (("local-completions", "/v1/completions", (), ()),
                                        ("local-chat-completions", "/v1/chat/completions", chat, ("--chat",))):
            expected, given = ours(REPLIES, *own), theirs(kind, REPLIES, route, *words)
            assert given == expected, {key: (given.get(key), value) for key, value in expected.items()
                                       if given.get(key) != value}
            print(f"{kind}: {len(given)} samples of replies are the same texts")


if __name__ == "__main__":
    main()
