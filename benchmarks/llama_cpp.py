#!/usr/bin/env python3
"""Batch-1 decoding of a 1B Llama on CPUs: llama.cpp compared with octet-bench serve-step, random weights of equal sizes.

    python3 -m venv llama && llama/bin/pip install numpy gguf
    pip download --no-deps --no-binary :all: llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B llama/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \\
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF && cmake --build llama/build --target llama-bench
    llama/bin/python benchmarks/llama_cpp.py --llama-bench llama/build/bin/llama-bench \\
        --octet-bench build/release/tools/octet-bench --folder llama

Writes FOLDER/llama-1b-{bf16,q8_0,q4_0}.gguf once (the sizes of octet's model llama-1b), then alternates both programs,
ROUNDS times, so that other load affects both equally; prints medians. llama.cpp decodes from an empty
cache of 128 tokens' depth, Octet at a context of 128.
"""
import argparse
import json
import os
import re
import statistics
import subprocess

import gguf
import numpy as np

LAYERS, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, VOCAB, CONTEXT = 22, 2048, 32, 4, 5632, 32000, 2048
KINDS = {
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}


def matrices():
    """Names and shapes [out, in] of the weights of a linear layer, the embedding and the head."""
    yield "token_embd.weight", (VOCAB, HIDDEN)
    yield "output.weight", (VOCAB, HIDDEN)
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        for name, shape in {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (INTERMEDIATE, HIDDEN),
            "ffn_up": (INTERMEDIATE, HIDDEN),
            "ffn_down": (HIDDEN, INTERMEDIATE),
        }.items():
            yield f"blk.{layer}.{name}.weight", shape


def write_model(path, kind):
    qtype, file_type = KINDS[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(file_type)
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(1337)
    codes = {}
    for name, shape in matrices():
        if shape not in codes:  # the same numbers for every matrix of a shape
            codes[shape] = gguf.quants.quantize(rng.normal(0, 0.02, shape).astype(np.float32), qtype)
        writer.add_tensor(name, codes[shape], raw_dtype=qtype)
    norms = ["output_norm"] + [f"blk.{i}.{norm}" for i in range(LAYERS) for norm in ("attn_norm", "ffn_norm")]
    for name in norms:
        writer.add_tensor(name + ".weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_llama(program, path, threads, tokens):
    command = [program, "-m", path, "-p", "0", "-n", str(tokens), "-d", "128", "-t", str(threads), "-r", "1"]
    out = subprocess.run(command + ["-o", "json"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)[0]["avg_ts"]


def run_octet(program, recipe, threads, tokens):
    command = [program, "serve-step", "--device", "cpu", "--model", "llama-1b", "--recipe", recipe, "--batch", "1"]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    out = subprocess.run(command + ["--context", "128", "--steps", str(tokens)], check=True, capture_output=True,
                         text=True, env=env).stdout
    row = re.search(r"^ +1 +128 +(.*)$", out, re.M).group(1).split()
    reading = float(re.search(r"roofline at ([0-9.]+) GB/s", out).group(1))
    return float(row[6]), float(row[5]), reading


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--octet-bench", required=True)
    parser.add_argument("--folder", default=".", help="of the .gguf files")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for kind, recipe in (("bf16", "bf16"), ("q8_0", "int8"), ("q4_0", "w4i8")):
        path = os.path.join(args.folder, f"llama-1b-{kind}.gguf")
        if not os.path.exists(path):
            write_model(path, kind)
        theirs, ours = [], []
        for _ in range(args.rounds):
            theirs.append(run_llama(args.llama_bench, path, args.threads, args.tokens))
            ours.append(run_octet(args.octet_bench, recipe, args.threads, args.tokens))
        tokens, share, reading = (statistics.median(values) for values in zip(*ours))
        print(
            f"llama.cpp {kind}: {statistics.median(theirs):.1f} tokens/s ({min(theirs):.1f}..{max(theirs):.1f}); "
            f"octet {recipe}: {tokens:.1f} ({min(o[0] for o in ours):.1f}..{max(o[0] for o in ours):.1f}), "
            f"{share:.0f} % of its floor, reading {reading:.1f} GB/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
