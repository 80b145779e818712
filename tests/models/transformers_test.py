#!/usr/bin/env python3
"""Folders of every family, exchanged with transformers in both directions. Usage: transformers_test.py OCTET_PROGRAM

What `octet train` writes, from scratch and from a folder (model.from), is loaded by transformers without missing or
unexpected tensors; `octet verify` compares its logits with theirs. And folders by transformers whose config.json leaves
out or bends a field are verified the same way. Exit status 77: the packages are absent."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error} (needs torch, transformers >= 5, safetensors)")
    sys.exit(77)

VOCAB = 300
FAMILIES = ["gpt2", "gpt_bigcode", "gptj", "gpt_neox", "opt", "bloom", "falcon", "mpt", "phi", "llama", "mistral", "qwen2",
            "qwen3", "gemma", "glm", "glm4", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"]
EXPERTS = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ABSENT = object()


def own_head(tensors):
    tensors["lm_head.weight"] = torch.randn(VOCAB, 64, generator=torch.Generator().manual_seed(3)) * 0.2


def small_embedding(tensors):  # beside which the norm's epsilon counts
    tensors["model.embed_tokens.weight"] *= 0.003


# Model type, fields of config.json to change (ABSENT: to leave out), tensors to change.
BENT = [
    ("llama", {"rope_scaling": LLAMA3, "rope_parameters": ABSENT, "max_position_embeddings": 512}, None),
    ("llama", {"rope_scaling": LLAMA3, "rope_parameters": ABSENT, "original_max_position_embeddings": 16}, None),
    ("llama", {"tie_word_embeddings": True}, own_head),
    ("gpt2", {"tie_word_embeddings": True}, own_head),
    ("phi", {"rope_parameters": ABSENT, "partial_rotary_factor": 0.02}, None),
    ("glm", {"rope_parameters": ABSENT, "partial_rotary_factor": 0.02}, None),
    ("gpt_neox", {"rope_parameters": ABSENT, "rotary_pct": 0.05}, None),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": None}, None),
    ("glm", {"rms_norm_eps": ABSENT}, small_embedding),
    ("mpt", {"attn_config": {"alibi_bias_max": 4}}, None),
    ("mistral", {"sliding_window": 5}, None),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "layer_types": ABSENT}, None),
    ("mixtral", {"sliding_window": 5}, None),
    ("qwen2", {"rope_scaling": YARN, "rope_parameters": ABSENT}, None),
    ("qwen3", {"rope_scaling": {**YARN, "truncate": False, "beta_fast": 4.0}, "rope_parameters": ABSENT}, None),
    ("glm4", {"rope_scaling": YARN, "rope_parameters": ABSENT}, None),
    ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "layer_types": ABSENT},
     None),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 5}, None),
    ("qwen2_moe", {"norm_topk_prob": True}, None),
    ("qwen3_moe", {}, None),
    ("qwen3_moe", {"norm_topk_prob": True, "decoder_sparse_step": ABSENT, "mlp_only_layers": [0, 2, 3]}, None),
    ("olmoe", {}, None),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 5,
               "layer_types": ["sliding_attention", "full_attention"]}, None),
]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    faults = {key: value for key, value in info.items() if value and key != "error_msgs"}
    if faults or info.get("error_msgs"):
        raise SystemExit(f"{folder}: transformers reports {info}")
    return model.eval()


def verify(program, folder):
    """The logits of transformers are what octet computes from the folder."""
    ids = torch.arange(40).remainder(11).mul(7).add(1).view(2, 20)
    with torch.no_grad():
        logits = load(folder)(ids).logits
    save_file({"input_ids": ids.int(), "logits": logits.contiguous()}, folder / "expected.safetensors")
    run(program, "verify", folder)


def check_written(program, family, data, out):
    """Sizes as people give them: no MLP width, so that the family's own is written."""
    sizes = ["model.size=gpt2-nano", f"model.architecture={family}", "model.hidden=64", "model.layers=2", "model.heads=4",
             "model.max_positions=64"]
    if family in EXPERTS:
        sizes += ["model.experts=6", "model.experts_per_token=3", "model.balance_loss=0.01", "model.z_loss=0.001"]
    if family.startswith("qwen") and family in EXPERTS:
        sizes += ["model.expert_intermediate=40"]
    settings = [f"data.train={data}", "data.sequence_length=32", "train.steps=1", "train.micro_batch=2",
                "precision.recipe=fp32", "checkpoint.keep=1"]
    run(program, "train", *sizes, *settings, f"out={out}/scratch")
    scratch = out / "scratch/checkpoints/step_00000001"
    verify(program, scratch)
    run(program, "train", f"model.from={scratch}", *settings, f"out={out}/tuned")
    verify(program, out / "tuned/checkpoints/step_00000001")


def tiny(model_type):
    config = transformers.AutoConfig.for_model(model_type)
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    for name in ("intermediate_size", "ffn_dim"):
        if hasattr(config, name):
            sizes[name] = 96
    if hasattr(config, "num_key_value_heads"):
        sizes["num_key_value_heads"] = 4
    if model_type in ("glm", "glm4", "gemma", "qwen3"):
        sizes["head_dim"] = 16
    if model_type in EXPERTS:
        sizes |= {"num_experts": 6, "num_experts_per_tok": 3}
    if model_type in ("qwen2_moe", "qwen3_moe"):
        sizes |= {"moe_intermediate_size": 40}
    if model_type == "qwen2_moe":
        sizes |= {"shared_expert_intermediate_size": 56}
    if model_type == "qwen3_moe":  # layer 1 alone is sparse
        sizes |= {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        sizes[name] = None
    for name in ("max_seq_len", "max_position_embeddings"):
        if hasattr(config, name):
            sizes[name] = 64
    return transformers.AutoConfig.for_model(model_type, **sizes)


def check_bent(program, model_type, fields, change, out):
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(tiny(model_type)).float()
    for parameter in model.parameters():  # large enough that a wrong constant shows
        torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    for name, value in fields.items():
        config.pop(name, None)
        if value is not ABSENT:
            config[name] = value
    (out / "config.json").write_text(json.dumps(config))
    if change:
        tensors = load_file(out / "model.safetensors")
        change(tensors)
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    verify(program, out)


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        text = root / "text.txt"
        text.write_text("".join(f"line {i} of a text that counts {i * 7 % 13} and {i % 5}\n" for i in range(2000)))
        run(program, "tokenizer", "train", "--vocab-size", VOCAB, "--out", root / "tokenizer", text)
        run(program, "data", "--tokenizer", root / "tokenizer", "--out", root / "data", text)
        for family in FAMILIES:
            check_written(program, family, root / "data", root / family)
            shutil.rmtree(root / family)
            print(f"written: {family}", flush=True)
        for i, (model_type, fields, change) in enumerate(BENT):
            check_bent(program, model_type, fields, change, root / f"bent{i}")
            names = {key: "absent" if value is ABSENT else value for key, value in fields.items()}
            print(f"read: {model_type} {names}{' ' + change.__name__ if change else ''}", flush=True)


if __name__ == "__main__":
    main()
