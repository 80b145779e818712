#!/usr/bin/env python3
"""Times vLLM's offline engine on the GPU: the peer of `octet bench throughput`, `latency` and `trace --at-once`.

Random weights of a named shape and random token ids, no tokenizer, greedy, every sequence to its full length. Measures in
one process: requests all at once (--throughput PROMPT/OUTPUTxREQUESTS), one request alone (--one-request PROMPT/OUTPUT:
tokens a second after the first), the first token of one request (--first-token PROMPT), and requests of the lengths of a
trace, all at once (--trace FILE). run_serving.py passes the options of its rows. Written for vLLM 0.24 with PyTorch 2.11.
"""

import argparse
import csv
import json
import os
import pathlib
import random
import statistics
import tempfile
import time

# One process, so that times are those of the engine; no downloads or reports.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"


def llama(intermediate, kv_heads, vocab, positions, theta, norm):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": intermediate,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "rope_theta": theta,
        "rms_norm_eps": norm,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


MODELS = {
    "llama2-7b": llama(11008, 32, 32000, 4096, 10000.0, 1e-5),
    "llama3-8b": llama(14336, 8, 128256, 8192, 500000.0, 1e-5),
    "gptj-6b": {
        "architectures": ["GPTJForCausalLM"],
        "model_type": "gptj",
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "n_positions": 2048,
        "rotary_dim": 64,
        "vocab_size": 50400,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
}
REPEATS = {"one_request": 3, "first_token": 5}  # runs per median


def lengths(text):
    """(128, 256, 4000) of 128/256x4000; without x, one request."""
    pair, _, requests = text.partition("x")
    prompt, _, output = pair.partition("/")
    return int(prompt), int(output), int(requests or 1)


def trace_lengths(path, requests, context):
    with open(path, newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    return [(prompt, output) for prompt, output in rows[:requests] if output > 0 and prompt + output <= context]


class Engine:
    def __init__(self, args, context):
        from vllm import LLM

        self.vocab = MODELS[args.model]["vocab_size"]
        self.random = random.Random(1337)
        fp8 = {"quantization": "fp8", "kv_cache_dtype": "fp8"} if args.precision == "fp8" else {}
        self.folder = tempfile.TemporaryDirectory()
        (pathlib.Path(self.folder.name) / "config.json").write_text(json.dumps(MODELS[args.model]))
        self.llm = LLM(
            model=self.folder.name,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=context,
            max_num_seqs=args.max_sequences,
            max_num_batched_tokens=args.max_step_tokens,
            gpu_memory_utilization=args.memory_fraction,
            enable_prefix_caching=False,
            disable_log_stats=True,
            attention_config={"backend": "FLASH_ATTN"},
            **fp8,
        )
        self.run([(128, 8)] * 32)

    def run(self, requests):
        """Tokens generated, and seconds."""
        from vllm import SamplingParams

        prompts = [
            {"prompt_token_ids": [self.random.randrange(10, self.vocab - 10) for _ in range(prompt)]}
            for prompt, _ in requests
        ]
        params = [
            SamplingParams(temperature=0, ignore_eos=True, min_tokens=output, max_tokens=output, detokenize=False)
            for _, output in requests
        ]
        started = time.perf_counter()
        done = self.llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        return sum(len(text.outputs[0].token_ids) for text in done), seconds

    def rate(self, requests):
        tokens, seconds = self.run(requests)
        return {"output_tokens_per_second": tokens / seconds, "requests": len(requests), "seconds": seconds}

    def first_token(self, prompt):
        return statistics.median(self.run([(prompt, 1)])[1] for _ in range(REPEATS["first_token"]))

    def one_request(self, prompt, output):
        whole = statistics.median(self.run([(prompt, output)])[1] for _ in range(REPEATS["one_request"]))
        first = self.first_token(prompt)
        return {"tokens_per_second": (output - 1) / (whole - first), "first_token_seconds": first}


def measure(args):
    import torch
    import vllm

    traced = trace_lengths(args.trace, args.trace_requests, args.context) if args.trace else []
    singles = [lengths(text) for text in args.throughput + args.one_request]
    longest = max([p + o for p, o, _ in singles] + [p + 1 for p in args.first_token] + [args.context if traced else 0])
    context = min(longest + 128, MODELS[args.model].get("max_position_embeddings", MODELS["gptj-6b"]["n_positions"]))
    started = time.perf_counter()
    engine = Engine(args, context)
    result = {
        "program": f"vLLM {vllm.__version__}",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "model": args.model,
        "precision": args.precision,
        "context": context,
        "max_sequences": args.max_sequences,
        "max_step_tokens": args.max_step_tokens,
        "start_seconds": time.perf_counter() - started,
        "throughput": {},
        "one_request": {},
        "first_token": {},
    }
    for text in args.throughput:
        prompt, output, requests = lengths(text)
        result["throughput"][text] = engine.rate([(prompt, output)] * requests)
    for text in args.one_request:
        prompt, output, _ = lengths(text)
        result["one_request"][text] = engine.one_request(prompt, output)
    for prompt in args.first_token:
        result["first_token"][str(prompt)] = {"first_token_seconds": engine.first_token(prompt)}
    if traced:
        result["trace"] = {"file": os.path.basename(args.trace), **engine.rate(traced)}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), default="llama2-7b")
    parser.add_argument("--precision", choices=["fp8", "bf16"], default="fp8", help="of weights and KV cache")
    parser.add_argument("--throughput", nargs="*", default=[], metavar="PROMPT/OUTPUTxREQUESTS")
    parser.add_argument("--one-request", nargs="*", default=[], metavar="PROMPT/OUTPUT")
    parser.add_argument("--first-token", nargs="*", default=[], type=int, metavar="PROMPT")
    parser.add_argument("--trace", help="CSV with ContextTokens and GeneratedTokens (Azure)")
    parser.add_argument("--trace-requests", type=int, default=3000)
    parser.add_argument("--context", type=int, default=8192, help="longest request of a trace; longer ones are left out")
    parser.add_argument("--max-sequences", type=int, default=1024)
    parser.add_argument("--max-step-tokens", type=int, default=8192)
    parser.add_argument("--memory-fraction", type=float, default=0.92)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    if not (args.throughput or args.one_request or args.first_token or args.trace):
        parser.error("nothing to measure: name --throughput, --one-request, --first-token or --trace")
    result = measure(args)
    print("{program}, torch {torch}, {model} {precision}, started in {start_seconds:.0f} s".format(**result))
    for text, row in result["throughput"].items():
        print(f"{text}: {row['output_tokens_per_second']:.0f} output tokens/s ({row['seconds']:.1f} s)")
    for text, row in result["one_request"].items():
        print(f"{text} alone: {row['tokens_per_second']:.0f} tokens/s, first {1e3 * row['first_token_seconds']:.1f} ms")
    for text, row in result["first_token"].items():
        print(f"first token of {text}: {1e3 * row['first_token_seconds']:.1f} ms")
    if row := result.get("trace"):
        print(f"{row['file']}, {row['requests']} requests: {row['output_tokens_per_second']:.0f} output tokens/s")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
