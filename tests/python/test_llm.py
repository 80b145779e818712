"""octet.LLM and SamplingParams: every name of vLLM's is served or refused by name; results have its shapes."""

import dataclasses
import json

import conftest
import pytest

import octet
from octet.llm import CompletionOutput, LoRARequest, RequestOutput


@pytest.fixture(scope="module")
def llm(model):
    return octet.LLM(model=str(model), dtype="float32", device="cpu", max_num_seqs=16, seed=3)


def shapes():
    return json.loads(conftest.shared("python", "vllm_shapes.json").read_text())


def test_sampling_params_are_served_or_refused(llm):
    values = {"n": 2, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "temperature": 0.5,
              "top_p": 0.5, "top_k": 5, "min_p": 0.1, "seed": 1, "stop": ["zzz"], "stop_token_ids": [3], "ignore_eos": True,
              "max_tokens": 4, "min_tokens": 2, "logprobs": 1, "prompt_logprobs": 1, "detokenize": False,
              "skip_special_tokens": False, "include_stop_str_in_output": True, "output_kind": "FINAL_ONLY",
              "structured_outputs": {"choice": ["a"]}, "logit_bias": {3: 1.0}, "allowed_token_ids": [40],
              "bad_words": ["cat"]}
    for name, default in shapes()["SamplingParams"]["fields"].items():
        if name in values:
            assert getattr(octet.SamplingParams(), name) == default, name
            assert llm.generate("The", octet.SamplingParams(**{"max_tokens": 2, name: values[name]}), use_tqdm=False), name
        else:
            octet.SamplingParams(**{name: default})
            with pytest.raises(octet.Unsupported, match=name):
                octet.SamplingParams(**{name: "other"})
    with pytest.raises(octet.InvalidArgument, match=r"'max_token' \(nearest: max_tokens\)"):
        octet.SamplingParams(max_token=3)
    with pytest.raises(octet.Unsupported, match="DELTA"):
        octet.SamplingParams(output_kind="DELTA")


def test_arguments_of_llm_are_served_or_refused(model):
    own = {"device": "cpu", "recipe": "fp32"}
    given = {**shapes()["LLM"]["init"], "model": str(model), "tokenizer": str(model)}
    octet.LLM(**given, **own).engine.close()
    served = {"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 128, "kv_cache_dtype": "float32", "seed": 1,
              "enable_prefix_caching": False, "gpu_memory_utilization": 0.1, "tensor_parallel_size": 1,
              "trust_remote_code": True, "skip_tokenizer_init": True, "revision": "main"}
    llm = octet.LLM(str(model), device="cpu", dtype="float32", **served)
    options = llm.engine.options
    assert (options["context"], options["max_sequences"], options["max_step_tokens"]) == (64, 2, 128)
    assert (options["kv_cache"], options["recipe"], options["prefix_cache"]) == ("f32", "fp32", False)
    assert llm.generate([[40, 41]], octet.SamplingParams(max_tokens=100))[0].outputs[0].finish_reason == "length"
    assert set(given) - {"model"} <= set(served) | {"tokenizer", "dtype", "quantization", *octet.llm._REFUSED, *octet.llm._LORA}
    llm.engine.close()
    for name, value in {"enforce_eager": True, "swap_space": 4, "dtype": "float16", "quantization": "bnb",
                        "speculative_config": {}}.items():
        with pytest.raises(octet.Unsupported, match=name):
            octet.LLM(str(model), **own, **{name: value})
    with pytest.raises(octet.InvalidArgument, match="'max_model_length' .nearest: max_model_len"):
        octet.LLM(str(model), max_model_length=3)
    with pytest.raises(octet.InvalidArgument, match="'max_sequence' .nearest: max_sequences"):
        octet.LLM(str(model), max_sequence=3)


def test_results(llm):
    params = octet.SamplingParams(temperature=0, max_tokens=6, logprobs=2, prompt_logprobs=1, n=1)
    outputs = llm.generate(["The cat", {"prompt": "The"}, {"prompt_token_ids": [40, 41]}], params, use_tqdm=False)
    assert [type(one) for one in outputs] == [RequestOutput] * 3 and [one.prompt for one in outputs][:2] == ["The cat", "The"]
    facts = shapes()
    assert [one.name for one in dataclasses.fields(RequestOutput)] == facts["RequestOutput"]["fields"]
    assert [one.name for one in dataclasses.fields(CompletionOutput)] == facts["CompletionOutput"]["fields"]
    assert [one.name for one in dataclasses.fields(LoRARequest)] == facts["LoRARequest"]
    first = outputs[0].outputs[0]
    assert first.finished() and first.finish_reason == "length" and len(first.logprobs) == len(first.token_ids) == 6
    assert first.text == llm.engine.generate("The cat", temperature=0, max_tokens=6).text
    for token, row in zip(first.token_ids, first.logprobs):
        assert 2 <= len(row) <= 3 and row[token].rank == 1 and row[token].decoded_token is not None
    assert first.cumulative_logprob == pytest.approx(sum(row[t].logprob for t, row in zip(first.token_ids, first.logprobs)),
                                                     abs=1e-4)
    assert outputs[0].prompt_logprobs[0] is None
    assert len(outputs[0].prompt_logprobs) == len(outputs[0].prompt_token_ids)
    each = llm.generate(["The", "The"], [octet.SamplingParams(max_tokens=2), octet.SamplingParams(max_tokens=3, n=2)])
    assert [len(one.outputs) for one in each] == [1, 2] and len(each[1].outputs[1].token_ids) == 3
    assert len({one.request_id for one in outputs + each}) == 5
    with pytest.raises(octet.InvalidArgument, match="enable_lora=True"):
        llm.generate("The", lora_request=LoRARequest("a", 1, "/a"))
    with pytest.raises(octet.InvalidArgument, match="max_loras=4 without enable_lora"):
        octet.LLM("/a", max_loras=4)
    with pytest.raises(octet.InvalidArgument, match="2 prompts with 1 sets"):
        llm.generate(["The", "The"], [params])


def test_chat_and_guides(llm):
    messages = [{"role": "user", "content": "The cat"}]
    reply = llm.chat(messages, octet.SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)[0]
    assert reply.prompt.endswith("<|assistant|>") and len(reply.outputs[0].token_ids) == 6
    assert len(llm.chat([messages, messages], octet.SamplingParams(max_tokens=1), use_tqdm=False)) == 2
    guide = octet.StructuredOutputsParams(choice=["yes", "no"])
    assert llm.generate("The", octet.SamplingParams(structured_outputs=guide))[0].outputs[0].text in ("yes", "no")
    with pytest.raises(octet.Unsupported, match="structural_tag"):
        octet.StructuredOutputsParams(structural_tag="x")
    with pytest.raises(octet.InvalidArgument, match="opened for generation"):
        llm.embed("The")
    assert llm.get_tokenizer().encode("The")
