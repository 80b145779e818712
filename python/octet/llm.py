"""vLLM's offline interface over octet.Engine: its arguments, defaults and result shapes. What is not served is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Union

from . import _octet
from .engine import Engine, find_model
from .errors import InvalidArgument, Unsupported

# Arguments of vLLM's LLM that are known and not served, but for these values, which change nothing.
_REFUSED: dict[str, Any] = {
    "enforce_eager": False, "pipeline_parallel_size": 1,
    "data_parallel_size": 1, "swap_space": None, "cpu_offload_gb": 0, "max_logprobs": 20, "load_format": "auto",
    "tokenizer_mode": "auto", "runner": "auto", "convert": "auto", "config_format": "auto", "hf_overrides": None,
    "speculative_config": None, "compilation_config": None, "override_generation_config": None,
    "generation_config": "auto", "mm_processor_kwargs": None, "limit_mm_per_prompt": None, "logits_processors": None,
    "allowed_local_media_path": "", "tokenizer_revision": None, "code_revision": None, "disable_log_stats": False,
    "enable_chunked_prefill": None, "distributed_executor_backend": None, "disable_custom_all_reduce": False,
    "enable_expert_parallel": False, "max_seq_len_to_capture": None, "download_dir": None, "num_gpu_blocks_override": None,
}
_SERVED = {
    "tokenizer": "tokenizer", "tensor_parallel_size": "tensor", "gpu_memory_utilization": "memory_fraction",
    "max_model_len": "context", "max_num_seqs": "max_sequences", "max_num_batched_tokens": "max_step_tokens",
    "enable_prefix_caching": "prefix_cache",
}
_LORA = {"enable_lora": False, "max_loras": 1, "max_lora_rank": 16}
_READ = ("model", "skip_tokenizer_init", "trust_remote_code", "dtype", "quantization", "revision", "seed", "kv_cache_dtype")
_RECIPES = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16"}
_QUANTIZED = {"fp8": "fp8-current"}
_OF_FOLDERS = ("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors")
_CACHES = {"fp8": "e4m3", "fp8_e4m3": "e4m3", "bfloat16": "bf16", "float32": "f32"}


def _check_names(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    from difflib import get_close_matches

    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.5)
            raise InvalidArgument(f"{what}: unknown argument '{name}'" + (f" (nearest: {near[0]})" if near else ""))


def _check_default(what: str, name: str, value: Any, default: Any) -> None:
    if value != default and value is not None:
        raise Unsupported(f"{what}: {name}={value!r} is not served (want {default!r}, or leave it out)")


@dataclass(init=False)
class StructuredOutputsParams:
    """What guides a text: one of json, regex, choice, grammar and json_object."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __init__(self, **given: Any) -> None:
        names = [one.name for one in fields(self)]
        refused = {"structural_tag": None, "disable_any_whitespace": False, "disable_additional_properties": False,
                   "whitespace_pattern": None, "disable_fallback": False}
        _check_names(given, [*names, *refused], "StructuredOutputsParams")
        for name, value in given.items():
            if name in refused:
                _check_default("StructuredOutputsParams", name, value, refused[name])
            else:
                setattr(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}


@dataclass(init=False)
class SamplingParams:
    """vLLM's SamplingParams, with its defaults."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: Any = "CUMULATIVE"
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None

    def __init__(self, n: int = 1, **given: Any) -> None:
        refused = {"prompt_logprob_token_ids": None, "prompt_logprob_start": None, "logprob_token_ids": None,
                   "flat_logprobs": False, "spaces_between_special_tokens": True, "stream_interval": None,
                   "extra_args": None, "skip_reading_prefix_cache": None, "thinking_token_budget": None,
                   "repetition_detection": None}
        _check_names(given, [*(one.name for one in fields(self)), *refused], "SamplingParams")
        self.n = n
        for name, value in given.items():
            if name in refused:
                _check_default("SamplingParams", name, value, refused[name])
            else:
                setattr(self, name, value)
        kind = getattr(self.output_kind, "name", self.output_kind)
        if kind not in ("CUMULATIVE", "FINAL_ONLY"):
            raise Unsupported(f"SamplingParams: output_kind={kind!r} is not served (want CUMULATIVE or FINAL_ONLY)")

    def options(self) -> dict[str, Any]:
        """As keyword arguments of octet.Engine.generate."""
        left_out = ("detokenize", "output_kind", "structured_outputs")
        options = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in left_out}
        guide = self.structured_outputs
        options["structured_outputs"] = guide.to_dict() if isinstance(guide, StructuredOutputsParams) else guide
        if self.max_tokens is None:
            options["max_tokens"] = 2**31 - 1
        return options


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""


LoRARequests = Union[LoRARequest, Sequence[Union[LoRARequest, None]], None]


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list[CompletionOutput])
    finished: bool = True
    metrics: dict[str, float] | None = None
    lora_request: LoRARequest | None = None
    num_cached_tokens: int | None = None


@dataclass
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class ScoringOutput:
    score: float


@dataclass
class PoolingOutput:
    request_id: str
    outputs: Any
    prompt_token_ids: list[int] = field(default_factory=list[int])
    finished: bool = True


_REASONS = {"stop": "stop", "length": "length", "context full": "length", None: None}


class LLM:
    """vLLM's LLM: `generate`, `chat`, `embed`, `score`. Options of octet.Engine may be given beside its own."""

    def __init__(self, model: str | os.PathLike[str], **given: Any) -> None:
        own = [one for one in _engine_options() if one not in _REFUSED]
        _check_names(given, [*_SERVED, *_READ, *_LORA, *_REFUSED, *own], "LLM")
        options = {_SERVED.get(name, name): value for name, value in given.items()
                   if name not in _READ and name not in _LORA and name not in _REFUSED}
        for name, default in _REFUSED.items():
            _check_default("LLM", name, given.get(name), default)
        self._lora = bool(given.get("enable_lora"))
        if self._lora:
            options.setdefault("max_adapters", given.get("max_loras") or _LORA["max_loras"])
            options.setdefault("max_adapter_rank", given.get("max_lora_rank") or _LORA["max_lora_rank"])
        else:
            for name, default in _LORA.items():
                if given.get(name, default) not in (default, None):
                    raise InvalidArgument(f"LLM: {name}={given[name]!r} without enable_lora=True")
        # trust_remote_code permits what is never done: no code of a folder is run.
        options |= _recipe(given.get("dtype") or "auto", given.get("quantization"))
        if (cache := given.get("kv_cache_dtype") or "auto") != "auto":
            options["kv_cache"] = _CACHES.get(cache, cache)
        self._seed: int | None = given.get("seed")
        self._texts = not given.get("skip_tokenizer_init", False)
        self._count = 0
        self._loaded: dict[str, LoRARequest] = {}
        self.engine = Engine(find_model(model, given.get("revision")), **options)
        self._tokenizer: _octet.Tokenizer | None = None

    def get_tokenizer(self) -> _octet.Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = self.engine.tokenizer()
        return self._tokenizer

    def generate(self, prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 use_tqdm: bool = True, lora_request: LoRARequests = None) -> list[RequestOutput]:
        single = isinstance(prompts, (str, Mapping)) or (bool(prompts) and isinstance(prompts[0], int))
        return self._run([prompts] if single else list(prompts), sampling_params, use_tqdm, lora_request)

    def chat(self, messages: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_tqdm: bool = True, lora_request: LoRARequests = None, chat_template: str | None = None,
             add_generation_prompt: bool = True, continue_final_message: bool = False,
             tools: list[dict[str, Any]] | None = None,
             chat_template_kwargs: dict[str, Any] | None = None) -> list[RequestOutput]:
        conversations: list[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        how: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, "chat_template": chat_template,
                               "continue_final_message": continue_final_message, "settings": chat_template_kwargs or {}}
        write = self.get_tokenizer().chat_prompt
        outputs = self._run([write(one, tools, **how) for one in conversations], sampling_params, use_tqdm, lora_request)
        for output, one in zip(outputs, conversations):
            output.prompt = write(one, tools, tokenize=False, **how)
        return outputs

    def embed(self, prompts: str | Sequence[str]) -> list[PoolingOutput]:
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        return [PoolingOutput(self._name(), EmbeddingOutput(one)) for one in self.engine.embed(texts)]

    def score(self, data_1: str | Sequence[str], data_2: str | Sequence[str]) -> list[PoolingOutput]:
        left, right = ([one] if isinstance(one, str) else list(one) for one in (data_1, data_2))
        return [PoolingOutput(self._name(), ScoringOutput(one)) for one in self.engine.score(left, right)]

    def _name(self) -> str:
        self._count += 1
        return str(self._count - 1)

    def _run(self, prompts: list[Any], params: SamplingParams | Sequence[SamplingParams] | None, use_tqdm: bool,
             lora_request: LoRARequests) -> list[RequestOutput]:
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        loras = list(lora_request) if isinstance(lora_request, Sequence) else [lora_request] * len(prompts)
        if len(loras) != len(prompts):
            raise InvalidArgument(f"LLM: {len(prompts)} prompts with {len(loras)} LoRA requests")
        options: list[dict[str, Any]] = [{"max_tokens": 16} if one is None else one.options() for one in each]
        for i, one in enumerate(options):
            if self._seed is not None and one.get("seed") is None:
                one["seed"] = self._seed + i
        for one, lora in zip(options, loras):
            one["adapter"] = None if lora is None else self._load(lora)
        bar = _progress(len(prompts)) if use_tqdm else None
        try:
            results = self.engine.run_tasks(prompts, options, False, bar and bar.update)
        finally:
            if bar is not None:
                bar.close()
        return [self._output(one, how, lora) for one, how, lora in zip(results, each, loras)]

    def _load(self, lora: LoRARequest) -> str:
        """The name of a request's adapter, which is loaded when it is first asked for."""
        if not self._lora:
            raise InvalidArgument(f"LLM: {lora!r} without enable_lora=True")
        known = self._loaded.setdefault(lora.lora_name, lora)
        if known.lora_path != lora.lora_path:
            raise InvalidArgument(f"LLM: {lora!r} has the name of {known!r} (want a name of its own)")
        if lora.lora_name not in self.engine.adapters:
            self.engine.load_adapter(lora.lora_name, lora.lora_path)
        return lora.lora_name

    def _output(self, of: _octet.Generation, params: SamplingParams | None, lora: LoRARequest | None) -> RequestOutput:
        shown = params is None or params.detokenize
        outputs = [CompletionOutput(
            one.index, one.text if shown else "", one.ids, None if one.logprobs is None else sum(one.logprobs),
            None if one.logprobs is None else self._logprobs(one.ids, one.logprobs, one.top_logprobs or []),
            _REASONS.get(one.finish_reason, "abort"), one.stop_reason, lora) for one in of.samples]
        scores: list[dict[int, Logprob] | None] | None = None
        if of.prompt_logprobs is not None:
            top = [one or {} for one in (of.prompt_top_logprobs or [])[1:]]
            known = [one or 0.0 for one in of.prompt_logprobs[1:]]
            scores = [None, *self._logprobs(of.prompt_ids[1:], known, top)]
        return RequestOutput(self._name(), of.prompt, of.prompt_ids, scores, outputs, metrics=of.times,
                             lora_request=lora, num_cached_tokens=int(of.times["cached_tokens"]))

    def _logprobs(self, ids: list[int], own: list[float], top: list[dict[int, float]]) -> list[dict[int, Logprob]]:
        def word(token: int) -> str | None:
            return self.get_tokenizer().decode([token]) if self._texts else None

        rows: list[dict[int, Logprob]] = []
        for token, logprob, likely in zip(ids, own, top):
            row = {token: Logprob(logprob, None, word(token))}
            for rank, (other, value) in enumerate(likely.items(), 1):
                row[other] = Logprob(value, rank, word(other))
            rows.append(row)
        return rows


def _engine_options() -> list[str]:
    return [line.strip().split(":")[0] for line in (_octet.Engine.__doc__ or "").splitlines() if line.startswith("    ")]


def _recipe(dtype: str, quantization: str | None) -> dict[str, str]:
    name = str(dtype).removeprefix("torch.")
    if name != "auto" and name not in _RECIPES:
        raise Unsupported(f"LLM: dtype={dtype!r} is not served (want auto, {', '.join(_RECIPES)})")
    if quantization is None or quantization in _OF_FOLDERS:  # a folder's own quantization is found in it
        return {"recipe": _RECIPES[name]} if name != "auto" and quantization is None else {}
    if quantization not in _QUANTIZED:
        served = ", ".join([*_QUANTIZED, *_OF_FOLDERS])
        raise Unsupported(f"LLM: quantization={quantization!r} is not served (want {served}, or recipe=)")
    return {"recipe": _QUANTIZED[quantization]}


def _progress(total: int) -> Any:
    try:
        from tqdm import tqdm  # pyright: ignore
    except ImportError:
        return None
    return tqdm(total=total, desc="Processed prompts")
