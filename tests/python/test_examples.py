"""Every example, and every block of Python in docs/python.md, runs."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*words, cwd):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, *map(str, words)], env=environment, cwd=cwd, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples(model, settings, tmp_path):
    words = {"generate.py": [model], "chat.py": [model, "hermes"], "vllm_script.py": [model],
             "train.py": [settings["data"]["train"], tmp_path / "run", "train.steps=10", "data.sequence_length=32",
                          "train.device=cpu", "model.layers=2", "model.hidden=64", "model.heads=4"]}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(words)
    for name, own in words.items():
        out = run(ROOT / "examples" / name, *own, cwd=tmp_path)
        assert out.strip(), name
    assert re.search(r"loss \d", out)


def test_blocks_of_the_document(model, settings, text, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
    assert len(blocks) >= 5
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "model").symlink_to(model)
    (tmp_path / "text.txt").symlink_to(text)
    for part in pathlib.Path(text).parent.glob("corpus*"):
        (tmp_path / part.name).symlink_to(part)
    (tmp_path / "tokenizer").symlink_to(pathlib.Path(text).parent / "tokenizer")
    (tmp_path / "all.py").write_text("\n".join(blocks))
    run(tmp_path / "all.py", cwd=tmp_path)
