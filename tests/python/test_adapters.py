"""Adapters of one engine by name: alone, mixed in a batch, loaded and unloaded while it runs, and vLLM's LoRA requests."""

import subprocess

import pytest
from conftest import program

import octet
from octet.llm import LoRARequest

GREEDY = {"temperature": 0, "max_tokens": 12}
PROMPTS = ["The cat sat", "7 and", "The", "mat"]


@pytest.fixture(scope="module")
def adapters(settings, model, tmp_path_factory):
    """Two runs that train adapters of the model, which differ by rank and rate."""
    out = tmp_path_factory.mktemp("adapters")
    base = {name: value for name, value in settings.items() if name != "model"}
    for rank, rate in ((4, 0.02), (8, 0.05)):
        octet.train(base, **{"model.from": str(model), "adapter.method": "lora", "adapter.rank": rank, "train.steps": 12,
                             "optimizer.lr": rate, "out": str(out / f"r{rank}")})
    return {"small": out / "r4", "large": out / "r8"}


@pytest.fixture(scope="module")
def merged(model, adapters, tmp_path_factory):
    """What each adapter, merged into the model, says."""
    texts = {}
    for name, run in adapters.items():
        folder = tmp_path_factory.mktemp("merged") / name
        subprocess.run([program(), "export", str(run), "--merge", "--dtype", "f32", "--out", str(folder)], check=True,
                       capture_output=True)
        with octet.Engine(folder, recipe="fp32", device="cpu") as engine:
            texts[name] = [one.ids for one in engine.generate(PROMPTS, **GREEDY)]
    return texts


def test_engine(model, engine, adapters, merged):
    plain = [one.ids for one in engine.generate(PROMPTS, **GREEDY)]
    assert merged["small"] != plain and merged["large"] != plain and merged["small"] != merged["large"]
    with octet.Engine(model, recipe="fp32", device="cpu", max_sequences=16, adapters=adapters) as opened:
        assert {name: one["rank"] for name, one in opened.adapters.items()} == {"small": 4, "large": 8}
        want = {"small": merged["small"], "large": merged["large"], None: plain}
        for name, texts in want.items():
            assert [one.ids for one in opened.generate(PROMPTS, adapter=name, **GREEDY)] == texts
        streams = [(want[name][i], opened.stream(prompt, adapter=name, **GREEDY))
                   for i, prompt in enumerate(PROMPTS) for name in want]
        for texts, stream in streams:
            for _ in stream:
                pass
            assert stream.result.ids == texts
        with pytest.raises(octet.InvalidArgument, match="none"):
            opened.generate("The", adapter="none", **GREEDY)
        opened.unload_adapter("small")
        assert list(opened.adapters) == ["large"]
        with pytest.raises(octet.InvalidArgument, match="small"):
            opened.generate("The", adapter="small", **GREEDY)
        opened.load_adapter("other", adapters["small"])
        assert [one.ids for one in opened.generate(PROMPTS, adapter="other", **GREEDY)] == merged["small"]
        with pytest.raises(octet.InvalidArgument, match="other"):
            opened.load_adapter("other", adapters["large"])
        opened.load_adapter("other", adapters["large"], replace=True)
        assert [one.ids for one in opened.generate(PROMPTS, adapter="other", **GREEDY)] == merged["large"]
    with pytest.raises(octet.NotFound, match="no such file"):
        octet.Engine(model, device="cpu", adapters={"a": "/no/such/folder"})
    with pytest.raises(octet.InvalidArgument, match="want a dict"):
        octet.Engine(model, device="cpu", adapters=["a"])


def test_lora_requests(model, adapters, merged):
    llm = octet.LLM(str(model), device="cpu", dtype="float32", enable_lora=True, max_loras=2, max_lora_rank=8, max_num_seqs=16)
    params = octet.SamplingParams(temperature=0, max_tokens=12)
    small, large = (LoRARequest(name, i, str(adapters[name])) for i, name in enumerate(("small", "large"), 1))
    outputs = llm.generate(PROMPTS, params, lora_request=small)
    assert [one.outputs[0].token_ids for one in outputs] == merged["small"] and outputs[0].lora_request == small
    outputs = llm.generate(PROMPTS, params, lora_request=[small, large, None, large])
    plain = llm.generate("The", params)[0].outputs[0].token_ids
    want = [merged["small"][0], merged["large"][1], plain, merged["large"][3]]
    assert [one.outputs[0].token_ids for one in outputs] == want and outputs[2].lora_request is None
    with pytest.raises(octet.InvalidArgument, match="4 prompts with 1 LoRA"):
        llm.generate(PROMPTS, params, lora_request=[small])
    with pytest.raises(octet.InvalidArgument, match="name of its own"):
        llm.generate("The", params, lora_request=LoRARequest("small", 3, "/elsewhere"))
    llm.engine.close()
