"""`octet serve` of encoders as the official Python package `openai` reads it, whose default is base64; and rerank, score and
`octet embed` beside it. Usage: serve_embeddings_test.py OCTET. Exit status 77: the package or the models are absent."""

import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

from served import Served, ask, skip, tiny_chat

try:
    import openai
except ImportError as error:
    skip(error)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "dog", "a"]
TEXTS = ["the cat", "a dog", "the dog a cat a cat"]


def token(name, type_id=0):
    return {"SpecialToken": {"id": name, "type_id": type_id}}


def text(name, type_id=0):
    return {"Sequence": {"id": name, "type_id": type_id}}


def with_tokenizer(name, folder):
    """A golden encoder with a WordPiece vocabulary of its size, in `folder`, which is returned."""
    golden = tiny_chat().parent / "experts_encoders" / name
    if not golden.exists():
        skip(f"test material '{golden}' is absent")
    shutil.copytree(golden, folder)
    words = WORDS + [f"[unused{i}]" for i in range(len(WORDS), 320)]
    special = [{"id": i, "content": WORDS[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i in range(4)]
    single = [token("[CLS]"), text("A"), token("[SEP]")]
    ids = {name: {"id": name, "ids": [WORDS.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": special, "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single,
                           "pair": [*single, text("B", 1), token("[SEP]", 1)], "special_tokens": ids},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)}}}))
    return folder


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def check_embeddings(octet, folder):
    with Served(octet, folder, "--served-model-name", "tiny", "--recipe", "fp32") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        made = client.embeddings.create(model="tiny", input=TEXTS)  # base64
        vectors = [one.embedding for one in made.data]
        assert [one.index for one in made.data] == [0, 1, 2] and made.usage.total_tokens == 4 + 4 + 8, made.usage
        assert all(len(vector) == 64 and math.isclose(dot(vector, vector), 1, abs_tol=1e-5) for vector in vectors)
        plain = client.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float").data[0].embedding
        assert math.isclose(dot(plain, vectors[0]), 1, abs_tol=1e-5)
        assert len(client.embeddings.create(model="tiny", input=[[2, 4, 3]], dimensions=7).data[0].embedding) == 7
        for bad in ({"input": ""}, {"input": []}, {"input": "cat", "dimensions": 65}, {"input": "cat " * 200}):
            try:
                client.embeddings.create(model="tiny", **bad)
            except openai.BadRequestError:
                continue
            raise AssertionError(f"not refused: {bad}")
        for call in (lambda: client.completions.create(model="tiny", prompt="Hi"),
                     lambda: client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}])):
            try:
                call()
            except openai.BadRequestError as error:
                assert "generates none" in str(error), error
            else:
                raise AssertionError("a generation was not refused")
        status, reply = ask(server.url + "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS})
        assert status == 200 and json.loads(reply)["results"][0]["index"] == 0, reply
    return vectors


def check_command(octet, folder, vectors):
    """`octet embed` gives the server's vectors."""
    command = [octet, "embed", folder, "-", "--recipe", "fp32", "--device", "cpu", "--threads", "1"]
    made = subprocess.run(command, input="\n".join(TEXTS), capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in made.splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2], made
    for line, vector in zip(lines, vectors, strict=True):
        assert math.isclose(dot(line["embedding"], vector), 1, abs_tol=1e-5)
    whole = subprocess.run([*command, "--json", "--dimensions", "5"], input=TEXTS[0], capture_output=True, text=True,
                           check=True).stdout
    assert len(json.loads(whole)["data"][0]["embedding"]) == 5 and json.loads(whole)["tokens"] == 4, whole
    long = subprocess.run(command, input="cat " * 200, capture_output=True, text=True)
    assert long.returncode == 1 and "202 tokens, the model takes 128" in long.stderr, long.stderr


def check_scores(octet, folder):
    with Served(octet, folder, "--recipe", "fp32") as server:
        status, reply = ask(server.url + "/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS})
        scores = [one["score"] for one in json.loads(reply)["data"]]
        assert status == 200 and len(scores) == 3 and all(0 < score < 1 for score in scores), reply
        status, reply = ask(server.url + "/v1/embeddings", {"input": "cat"})
        assert status == 400 and "classifier" in reply, reply


def main():
    with tempfile.TemporaryDirectory() as path:
        bert = with_tokenizer("bert_model", pathlib.Path(path) / "bert")
        check_command(sys.argv[1], bert, check_embeddings(sys.argv[1], bert))
        check_scores(sys.argv[1], with_tokenizer("bert_cross_encoder", pathlib.Path(path) / "cross"))


main()
