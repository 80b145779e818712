"""A tiny model, trained by the package on a text of this folder, and what tests share."""

import os
import pathlib
import subprocess
import sysconfig

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "2")

import octet  # noqa: E402

TEMPLATE = """{%- for message in messages -%}
<|{{ message.role }}|>{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}<tool_call>{{ call.function | tojson }}</tool_call>{%- endfor %}
{% endfor -%}
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif -%}
{%- if add_generation_prompt %}<|assistant|>{{ note or '' }}{% endif -%}
"""


def program():
    """The program of this environment, or the one of the build."""
    return os.environ.get("OCTET_PROGRAM") or str(pathlib.Path(sysconfig.get_path("scripts")) / "octet")


def shared(*parts):
    """A path in the folder of outside material; the test is skipped where it is absent."""
    root = pathlib.Path(__file__).resolve().parents[2]
    path = pathlib.Path(os.environ.get("OCTET_TEST_DATA", root.parent / "shared" / "data")).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return path


@pytest.fixture(scope="session")
def settings(tmp_path_factory):
    """Of a run over a small corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    text = "".join(f"{i} and {i + 1} make {2 * i + 1}. The cat sat on the mat \"{i}\" times, {{or}} [more].\n"
                   for i in range(600))
    (folder / "text").write_text(text)
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([program(), "tokenizer", "train", "--vocab-size", "300", "--out", "tokenizer", "text"], **quiet)
    subprocess.run([program(), "data", "--tokenizer", "tokenizer", "--out", "corpus", "text"], **quiet)
    return {"train": {"device": "cpu", "steps": 60, "micro_batch": 4, "seed": 1},
            "data": {"train": str(folder / "corpus"), "sequence_length": 64},
            "model": {"size": "gpt2-nano", "layers": 2, "hidden": 64, "heads": 4, "max_positions": 384},
            "optimizer.lr": 0.003, "precision.recipe": "fp32", "eval.interval": 0, "log.interval": 100}


@pytest.fixture(scope="session")
def text(settings):
    return str(pathlib.Path(settings["data"]["train"]).parent / "text")


@pytest.fixture(scope="session")
def model(settings, tmp_path_factory):
    """The folder of a checkpoint with a chat template."""
    out = tmp_path_factory.mktemp("model")
    result = octet.train(settings, out=str(out))
    folder = pathlib.Path(result.checkpoint)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def engine(model):
    with octet.Engine(model, recipe="fp32", device="cpu", max_sequences=16) as opened:
        yield opened
