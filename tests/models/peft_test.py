#!/usr/bin/env python3
"""Adapters that `octet train` and `octet export` write, loaded by PEFT. Usage: peft_test.py OCTET_PROGRAM

Every kind of adapter is trained for a few steps on a tiny base of each family; PEFT's logits are compared with those of
`octet verify`, which holds them to 2e-4. PEFT must find every tensor it wants and no other, and the adapter must change
the base's logits. Exit status 77: the packages or the bases are absent."""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import transformers
    from peft import PeftModel
    from safetensors.torch import save_file
except ImportError as error:
    print(f"skipped: {error} (needs torch, transformers >= 5, peft, safetensors)")
    sys.exit(77)

SHARED = pathlib.Path(__file__).resolve().parents[3] / "shared/data"
BASES = pathlib.Path(os.environ.get("OCTET_TEST_DATA") or SHARED) / "adapt/adapters"
LORA = ["adapter.method=lora", "adapter.rank=4"]

# Base, name, settings.
ADAPTERS = [
    ("llama", "lora", [*LORA, "adapter.alpha=8"]),
    ("llama", "lora_qv", [*LORA, "adapter.targets=q_proj,v_proj", "adapter.layers=1"]),
    ("llama", "rslora_patterns", [*LORA, "adapter.rslora=true", "adapter.rank_pattern=down_proj=8,k_proj=2",
                                  "adapter.alpha_pattern=down_proj=4"]),
    ("llama", "expression", [*LORA, r"adapter.targets=.*mlp\.(gate|up)_proj"]),
    ("llama", "exclude", [*LORA, "adapter.exclude=o_proj"]),
    ("llama", "modules_to_save", [*LORA, "adapter.train=norm,lm_head"]),
    ("llama", "embedding_and_head", [*LORA, "adapter.targets=q_proj,embed_tokens,lm_head"]),
    ("llama", "token_rows", [*LORA, "adapter.token_rows=7,100,127"]),
    ("llama", "dora", ["adapter.method=dora", "adapter.rank=4"]),
    ("llama", "prompt_tuning", ["adapter.method=prompt_tuning", "adapter.virtual_tokens=5"]),
    ("llama", "p_tuning", ["adapter.method=p_tuning", "adapter.virtual_tokens=5"]),
    ("gpt2", "lora_fused", LORA),
    ("gpt2", "one_of_fused", [*LORA, "adapter.targets=attn.q,attn.v"]),
    ("gpt2", "bias_all", [*LORA, "adapter.bias=all"]),
    ("gpt2", "bias_lora_only", [*LORA, "adapter.bias=lora_only"]),
    ("gpt2", "dora_fused", ["adapter.method=dora", "adapter.rank=4"]),
    ("gpt2", "prompt_tuning", ["adapter.method=prompt_tuning", "adapter.virtual_tokens=3"]),
    ("bloom", "lora_fused", [*LORA, "adapter.rslora=true"]),
    ("bloom", "bias_lora_only", [*LORA, "adapter.bias=lora_only"]),
    ("qwen2", "bias_lora_only", [*LORA, "adapter.bias=lora_only"]),
    ("qwen2", "tied_embedding", [*LORA, "adapter.targets=v_proj,embed_tokens"]),
    ("qwen2", "tied_head", [*LORA, "adapter.targets=v_proj,lm_head"]),
    ("qwen2", "tied_token_rows", [*LORA, "adapter.token_rows=3,90"]),
    ("qwen2", "p_tuning", ["adapter.method=p_tuning", "adapter.virtual_tokens=4", "adapter.encoder_hidden=24"]),
    ("qwen3_moe", "lora", LORA),
    ("qwen3_moe", "experts", [*LORA, "adapter.targets=q_proj,experts.gate,experts.up,experts.down"]),
]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def write_tokens(prefix, count, vocabulary):
    """A prepared set of one document, in Megatron's form: u16 ids, an index with sizes, offsets, documents."""
    draw = random.Random(5)
    ids = [(i * i // 7 + draw.randrange(4)) % vocabulary for i in range(count)]
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{count}H", *ids))
    prefix.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", count) +
                                           struct.pack("<q", 0) + struct.pack("<qq", 0, 1))


def compare(octet, base, folder, start):
    """The logits of PEFT against octet verify's; how far the adapter takes them from the base's."""
    load = {"dtype": torch.float32, "attn_implementation": "eager"}
    ids = torch.randint(0, 128, (2, 24), generator=torch.Generator().manual_seed(9))
    bare = transformers.AutoModelForCausalLM.from_pretrained(base, **load)
    with torch.no_grad():
        before = bare(input_ids=ids).logits
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(bare, folder).eval()
    faults = [str(one.message) for one in told if "missing" in str(one.message) or "unexpected" in str(one.message)]
    assert not faults, (folder, faults)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[:, -ids.shape[1]:]
    moved = (logits - before).abs().max().item()
    assert moved > 1e-2, f"{folder}: the adapter moves no logit by more than {moved}"
    save_file({"input_ids": ids, "logits": logits.contiguous()}, folder / "expected.safetensors")
    print(f"{start}: moved by {moved:.3g}; {run(octet, 'verify', folder, '--base', base).splitlines()[-1]}", flush=True)


def main():
    octet = pathlib.Path(sys.argv[1]).resolve()
    if not BASES.is_dir():
        print("skipped: test material 'adapt/adapters' is absent: set OCTET_TEST_DATA to the folder that holds adapt/")
        sys.exit(77)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    wanted = sys.argv[2:]
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        write_tokens(work / "corpus", 4000, 128)
        for family, kind, settings in ADAPTERS:
            if wanted and kind not in wanted and family not in wanted:
                continue
            base, out = BASES / f"base_{family}", work / f"{family}_{kind}"
            run(octet, "train", f"model.from={base}", f"data.train={work / 'corpus'}", "data.sequence_length=24",
                "train.micro_batch=2", "train.global_batch=4", "train.steps=4", "optimizer.lr=0.05", "train.device=cpu",
                "train.threads=1", "precision.recipe=fp32", "eval.interval=0", f"out={out}", *settings)
            checkpoint = max((out / "checkpoints").iterdir())
            config = json.loads((checkpoint / "adapter_config.json").read_text())
            assert config["base_model_name_or_path"], config
            compare(octet, base, checkpoint, f"{family} {kind}")
            if kind in ("lora", "dora", "p_tuning", "bias_all", "experts"):
                run(octet, "export", out, "--out", work / "exported" / out.name)
                compare(octet, base, work / "exported" / out.name, f"{family} {kind} exported")
    print("all adapters load in PEFT")


if __name__ == "__main__":
    main()
