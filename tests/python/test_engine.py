"""Engine: texts, options, masks, errors."""

import json
import subprocess
import threading
import time

import conftest
import pytest

import octet

PROMPTS = ["The cat sat", "7 and 8 make", "12 and", "The"]


def test_texts_are_the_programs(engine, model):
    command = [conftest.program(), "generate", str(model), "--recipe", "fp32", "--device", "cpu", "--json", "-n", "12",
               "--temperature", "0.8", "--seed", "5", "--logprobs", "2"]
    for prompt in PROMPTS:
        command += ["-p", prompt]
    lines = [json.loads(line) for line in subprocess.run(command, check=True, capture_output=True).stdout.splitlines()]
    ours = engine.generate(PROMPTS, max_tokens=12, temperature=0.8, seed=5, logprobs=2)
    assert [one.ids for one in ours] == [line["ids"] for line in lines]
    assert [one.text for one in ours] == [line["text"] for line in lines]
    assert [one.finish_reason for one in ours] == [line["finish_reason"] for line in lines]
    for one, line in zip(ours, lines):
        assert one.logprobs == pytest.approx([token["logprob"] for token in line["logprobs"]], abs=1e-6)
        assert [list(top) for top in one.top_logprobs] == [[t["id"] for t in top] for top in line["top_logprobs"]]


def test_stories260k_is_greedy_as_recorded():
    folder = conftest.shared("tiny-models", "stories260K")
    expected = (folder / "expected_greedy_n200.txt").read_text()
    with octet.Engine(folder / "stories260K.bin", tokenizer=folder / "tok512.bin", recipe="fp32", device="cpu") as stories:
        assert expected.strip().startswith(stories.generate("", temperature=0, max_tokens=100).text.strip()[:200])


def test_one_prompt_in_every_form(engine):
    ids = engine.tokenizer().encode("The cat")
    texts = [engine.generate(prompt, max_tokens=8, temperature=0).text
             for prompt in ("The cat", ids, tuple(ids), {"prompt": "The cat"}, {"prompt_token_ids": ids})]
    assert len(set(texts)) == 1
    assert engine.generate([ids, "The cat"], max_tokens=8, temperature=0)[0].text == texts[0]
    assert engine.generate([]) == []


def test_a_generation_tells_what_it_is(engine):
    one = engine.generate("The cat", max_tokens=5, temperature=0, prompt_logprobs=1)
    assert one.prompt == "The cat" and len(one.ids) == 5 and one.finish_reason == "length"
    assert one.prompt_logprobs[0] is None and len(one.prompt_logprobs) == len(one.prompt_ids)
    assert one.times["generated_tokens"] == 5 and one.times["last_token"] >= one.times["first_token"] > 0
    assert one.logprobs is None and one.score is None and one.stop_reason is None
    assert one.to_dict()["text"] == one.text and "finish_reason='length'" in repr(one)
    scored = engine.prompt_logprobs("The cat", top=2)
    assert scored.prompt_logprobs[1:] == pytest.approx(one.prompt_logprobs[1:], abs=1e-5) and scored.ids == []


def test_samples_and_beams(engine):
    several = engine.generate("The", n=3, seed=2, max_tokens=6)
    assert [one.index for one in several.samples] == [0, 1, 2] and several.text == several.samples[0].text
    beams = engine.generate("The", beams=3, n=2, max_tokens=6)
    assert len(beams.samples) == 2 and beams.samples[0].score >= beams.samples[1].score
    with pytest.raises(octet.InvalidArgument, match="use_beam_search|beams"):
        engine.generate("The", beams=99)


def test_stops_and_guides(engine):
    free = engine.generate("The cat", max_tokens=24, temperature=0)
    stop = free.text[3:5]
    cut = engine.generate("The cat", max_tokens=24, temperature=0, stop=stop)
    assert cut.finish_reason == "stop" and cut.stop_reason == stop and stop not in cut.text
    choice = engine.generate("The cat", structured_outputs={"choice": ["mat", "sat"]}, max_tokens=20)
    assert choice.text in ("mat", "sat")
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
              "required": ["a"], "additionalProperties": False}
    assert json.loads(engine.generate("x", schema=schema, max_tokens=40).text)["a"] in range(10)
    banned = free.ids[0]
    assert engine.generate("The cat", max_tokens=4, temperature=0, logit_bias={banned: -100}).ids[0] != banned
    assert set(engine.generate("The cat", max_tokens=6, allowed_token_ids=[40, 41]).ids) <= {40, 41}


def test_masks_of_python(engine):
    seen = []

    def only(index, ids, allowed):
        seen.append((index, len(ids)))
        return [50, 51]

    assert set(engine.generate("The", max_tokens=4, mask=only).ids) <= {50, 51}
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 3)]

    def in_place(index, ids, allowed):
        for word in range(len(allowed)):
            allowed[word] &= 1 << 20 if word == 1 else 0

    assert engine.generate("The", max_tokens=3, mask=in_place).ids == [52, 52, 52]
    with pytest.raises(octet.InvalidArgument, match="mask: ZeroDivisionError"):
        engine.generate("The", mask=lambda *_: 1 // 0)
    with pytest.raises(octet.Error, match="may not use an engine"):
        engine.generate("The", mask=lambda *_: engine.generate("The"))
    with pytest.raises(octet.InvalidArgument, match="it left no token"):
        engine.generate("The", mask=lambda *_: [])
    with pytest.raises(octet.InvalidArgument, match="want token ids"):
        engine.generate("The", mask=lambda *_: ["a"])
    with pytest.raises(octet.InvalidArgument, match="no callable"):
        engine.generate("The", mask=3)
    assert engine.generate("The", max_tokens=2).finish_reason == "length"  # the engine goes on


@pytest.mark.parametrize("options, words", [
    ({"max_token": 3}, r"unknown option 'max_token' \(nearest: max_tokens\)"),
    ({"temperature": -1}, "temperature is -1"), ({"temperature": float("nan")}, "temperature is"),
    ({"top_p": 2}, "top_p is 2"), ({"n": 0}, "n is 0"), ({"stop": [3]}, "stop is"), ({"seed": "a"}, "seed is"),
    ({"logprobs": 21}, "logprobs is 21"), ({"logit_bias": {9999: 1}}, "not a token id"), ({"timeout": 0}, "timeout: 0"),
    ({"seed": 2**70}, "does not fit 64 bits"), ({"stop": object()}, "of type object"),
    ({"structured_outputs": {"regex": "("}}, "regex"), ({"tools": []}, "unknown option 'tools'"),
    ({"schema": {"type": "object", "minimum": {}}}, "minimum"),
])
def test_options_that_cannot_be(engine, options, words):
    with pytest.raises(octet.InvalidArgument, match=words) as caught:
        engine.generate("The", **options)
    assert isinstance(caught.value, ValueError) and caught.value.code == "invalid_argument"


@pytest.mark.parametrize("prompt, words", [
    ([1, "a"], "want token ids"), ([2**40], "want token ids"), ([-1], "-1"), ([99999], "99999"), (b"The", "a prompt is"),
    (3, "a prompt is"), ({"text": "a"}, "a prompt has 'text'"), ({}, "a prompt is empty"), (["a", 3], "a prompt is 3"),
])
def test_prompts_that_cannot_be(engine, prompt, words):
    with pytest.raises((octet.InvalidArgument, TypeError), match=words):
        engine.generate(prompt)


def test_a_long_prompt_and_a_place_in_a_list(engine):
    with pytest.raises(octet.InvalidArgument, match="prompt 2 of 3: .*too long") as caught:
        engine.generate(["The", "The cat sat on the mat. " * 200, "The"])
    assert caught.value.code == "context_length_exceeded"
    kept = engine.generate("The cat sat on the mat. " * 200, truncate_prompt_tokens=8, max_tokens=1)
    assert len(kept.prompt_ids) == 8


def test_options_of_engines(model):
    with pytest.raises(octet.InvalidArgument, match="max_sequences"):
        octet.Engine(model, max_sequence=3)
    with pytest.raises(octet.InvalidArgument, match="device"):
        octet.Engine(model, device="tpu")
    with pytest.raises(octet.InvalidArgument, match="set by the library"):
        octet.Engine(model, build="x")
    with pytest.raises(FileNotFoundError, match="no such file") as caught:
        octet.Engine("/no/such/folder")
    assert isinstance(caught.value, octet.NotFound) and caught.value.code == "not_found"
    with pytest.raises(octet.Error):
        octet.Engine(model, device="cuda")  # or there is a GPU, and the next line ends this
        pytest.skip("this machine has a GPU")
    assert "max_sequences: sequences in flight (>= 1)" in octet.Engine.__doc__
    with octet.Engine(str(model), device="cpu", recipe="fp32", context=32, threads=2) as small:
        assert small.context == 32 and small.options["context"] == 32 and small.plan["device"] == "cpu"
        assert small.vocab_size >= 300 and small.stats()["running"] == 0
    assert small.closed
    with pytest.raises(octet.InvalidArgument, match="the engine is closed"):
        small.generate("The")
    small.close()


def test_a_model_without_a_tokenizer(model, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(model / name)
    with octet.Engine(tmp_path, device="cpu", recipe="fp32") as bare:
        assert len(bare.generate([5, 6, 7], max_tokens=3).ids) == 3
        with pytest.raises(octet.InvalidArgument, match="has no tokenizer"):
            bare.generate("The")
        with pytest.raises(octet.InvalidArgument, match="stop: .*has no tokenizer"):
            bare.generate([5], stop="a")
        with pytest.raises(octet.InvalidArgument, match="opened for generation"):
            bare.embed("The")


def test_streams(engine):
    whole = engine.generate("The cat", max_tokens=20, temperature=0)
    stream = engine.stream("The cat", max_tokens=20, temperature=0)
    events = list(stream)
    assert "".join(event.text for event in events) == whole.text
    assert [i for event in events for i in event.ids] == whole.ids and events[-1].finish_reason == "length"
    assert stream.done and stream.result.text == whole.text
    for event in engine.stream("The cat", max_tokens=100, ignore_eos=True):
        break
    with engine.stream("The cat", max_tokens=100) as held:
        next(held)
    assert held.result.finish_reason in ("cancelled", "length")
    wait_idle(engine)
    with pytest.raises(octet.InvalidArgument, match="unknown option"):
        engine.stream("The", tokens=3)
    with pytest.raises(octet.InvalidArgument, match="open one for each"):
        engine.stream(["The", "cat"])


def wait_idle(engine, seconds=60):
    end = time.monotonic() + seconds
    while engine.stats()["running"] + engine.stats()["waiting"] > 0:
        assert time.monotonic() < end, engine.stats()
        time.sleep(0.01)


def test_a_timeout_ends_a_text(engine):
    assert engine.generate("The", max_tokens=100, ignore_eos=True, timeout=1e-6).finish_reason == "timeout"


def test_threads_and_several_engines(model):
    with octet.Engine(model, device="cpu", recipe="fp32") as one, octet.Engine(model, device="cpu", recipe="fp32") as two:
        expected = one.generate("The cat", max_tokens=10, temperature=0).text
        got = []

        def work(engine):
            got.extend(text.text for text in engine.generate(["The cat"] * 5, max_tokens=10, temperature=0))

        threads = [threading.Thread(target=work, args=(engine,)) for engine in (one, two, one)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [expected] * 15


def test_closing_under_a_call_and_streams_beyond_it(model):
    engine = octet.Engine(model, device="cpu", recipe="fp32")
    stream = engine.stream("The cat", max_tokens=100, ignore_eos=True)
    caught = []

    def work():
        try:
            engine.generate(["The cat"] * 500, max_tokens=100, ignore_eos=True)
        except octet.Error as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    engine.close()
    thread.join(60)
    assert not thread.is_alive() and caught == ["the engine was closed while it worked"]
    assert list(stream)[-1].finish_reason in ("cancelled", "length")


def test_an_engine_is_not_pickled(engine):
    import pickle
    with pytest.raises(octet.Unsupported, match="cannot be pickled"):
        pickle.dumps(engine)


def test_tokenizers(model, engine):
    tokenizer = octet.Tokenizer(model)
    ids = tokenizer.encode("The cat sat.")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "The cat sat." and tokenizer.encode(["The cat sat."]) == [ids]
    assert len(tokenizer) == tokenizer.vocab_size and b"".join(map(tokenizer.token_bytes, ids)).endswith(b"sat.")
    with pytest.raises(octet.InvalidArgument, match="99999"):
        tokenizer.decode([99999])
    with pytest.raises(octet.NotFound):
        octet.Tokenizer("/no/such/folder")


def word_pieces(folder):
    """A WordPiece vocabulary of 320 tokens."""
    letters = [chr(ord("a") + i) for i in range(26)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{one}" for one in letters), "the", "cat", "dog"]
    words += [f"[unused{i}]" for i in range(len(words), 320)]
    special = [{"id": i, "content": words[i], "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i in range(4)]
    a, b, sep = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}, "[SEP]"
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, a, {"SpecialToken": {"id": sep, "type_id": 0}}]
    json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
               "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                              "strip_accents": None, "lowercase": True},
               "pre_tokenizer": {"type": "BertPreTokenizer"},
               "post_processor": {"type": "TemplateProcessing", "single": around,
                                  "pair": [*around, b, {"SpecialToken": {"id": sep, "type_id": 1}}],
                                  "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                                                     sep: {"id": sep, "ids": [3], "tokens": [sep]}}},
               "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
               "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                         "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)}}},
              (folder / "tokenizer.json").open("w"))


def encoder_folder(name, folder):
    golden = conftest.shared("serving", "experts_encoders", name)
    for file in ("config.json", "model.safetensors"):
        (folder / file).symlink_to(golden / file)
    word_pieces(folder)
    return folder


def test_embeddings_and_their_cosine(tmp_path):
    with octet.Engine(encoder_folder("bert_model", tmp_path), device="cpu", recipe="fp32") as encoder:
        one, other = encoder.embed(["the cat", "a dog"])
        assert encoder.embed("the cat") == pytest.approx(one, abs=1e-5) and sum(x * x for x in one) == pytest.approx(1, 1e-4)
        assert len(encoder.embed("the cat", dimensions=8)) == 8
        cosine = sum(x * y for x, y in zip(one, other))
        assert encoder.score("the cat", "a dog") == pytest.approx(cosine, abs=1e-5)
        assert encoder.score("the cat", ["the cat", "a dog"]) == pytest.approx([1, cosine], abs=1e-5)
        with pytest.raises(octet.InvalidArgument, match="is an encoder and generates no text"):
            encoder.generate("the cat")
        with pytest.raises(octet.InvalidArgument, match="unknown option 'dimension' .nearest: dimensions"):
            encoder.embed("the cat", dimension=3)
        with pytest.raises(octet.InvalidArgument, match="2 left texts for 3"):
            encoder.score(["a", "b"], ["a", "b", "c"])


def test_a_cross_encoder_scores_and_does_not_embed(tmp_path):
    with octet.Engine(encoder_folder("bert_cross_encoder", tmp_path), device="cpu", recipe="fp32") as encoder:
        assert 0 <= encoder.score("the cat", "a dog") <= 1
        with pytest.raises(octet.InvalidArgument, match="is a classifier"):
            encoder.embed("the cat")
