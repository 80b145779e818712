#!/usr/bin/env python3
"""Writes a Hugging Face folder of Llama-2-7B's shape with random bf16 weights: to time the loading of a model.

The vocabulary is that of the given tokenizer folder, whose files are copied. Needs torch; each file is written
by a thread.
"""

import argparse
import concurrent.futures
import json
import pathlib
import shutil
import struct

import torch


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.cpu().view(torch.uint8).numpy())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder copied into OUT")
    parser.add_argument("--vocab", type=int, default=50304)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--ffn", type=int, default=11008)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--shard-layers", type=int, default=8, help="layers of a file")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for file in args.tokenizer.iterdir():
        shutil.copy(file, args.out)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": args.hidden,
        "intermediate_size": args.ffn,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.heads,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": args.vocab,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (args.out / "config.json").write_text(json.dumps(config, indent=1))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count = 1 + (args.layers + args.shard_layers - 1) // args.shard_layers

    def write_shard(index):  # the first: tensors outside layers
        generator = torch.Generator(device).manual_seed(1337 + index)

        def matrix(rows, cols):
            return torch.empty(rows, cols, dtype=torch.bfloat16, device=device).normal_(0, 0.02, generator=generator)

        def ones():
            return torch.ones(args.hidden, dtype=torch.bfloat16)

        tensors = {}
        if index == 0:
            tensors = {"model.embed_tokens.weight": matrix(args.vocab, args.hidden), "model.norm.weight": ones()}
            tensors["lm_head.weight"] = matrix(args.vocab, args.hidden)
        else:
            first = args.shard_layers * (index - 1)
            for layer in range(first, min(first + args.shard_layers, args.layers)):
                at = f"model.layers.{layer}."
                for name in "qkvo":
                    tensors[f"{at}self_attn.{name}_proj.weight"] = matrix(args.hidden, args.hidden)
                for name in ("gate", "up"):
                    tensors[f"{at}mlp.{name}_proj.weight"] = matrix(args.ffn, args.hidden)
                tensors[f"{at}mlp.down_proj.weight"] = matrix(args.hidden, args.ffn)
                tensors[f"{at}input_layernorm.weight"] = ones()
                tensors[f"{at}post_attention_layernorm.weight"] = ones()
        file = f"model-{index + 1:05}-of-{count:05}.safetensors"
        write_safetensors(args.out / file, tensors)
        return {name: (file, t.numel() * t.element_size()) for name, t in tensors.items()}

    with concurrent.futures.ThreadPoolExecutor() as pool:
        written = [item for shard in pool.map(write_shard, range(count)) for item in shard.items()]
    names, size = {name: file for name, (file, _) in written}, sum(length for _, (_, length) in written)
    index = {"metadata": {"total_size": size}, "weight_map": names}
    (args.out / "model.safetensors.index.json").write_text(json.dumps(index))
    print(f"{args.out}: {count} files, {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
