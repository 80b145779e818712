#!/usr/bin/env python3
"""Makes src/weights/testdata: tiny folders in layouts of other programs, written and read back by these programs.

    GPTQMODEL_CPU_WORKERS=2 python3 tests/models/make_packed_cases.py OUT_FOLDER

Wants gptqmodel, compressed-tensors, transformers and torch; no GPU. OUT/NAME/expected.safetensors: logits [2, 24, V] of
input_ids [2, 24], by transformers in float32 of the weights as the program that packed them dequantizes them."""
import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCAB = 64
SIZES = {"vocab_size": VOCAB, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "max_position_embeddings": 64, "initializer_range": 0.2, "tie_word_embeddings": False, "bos_token_id": 1,
         "eos_token_id": 2, "dtype": "float16"}
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "intermediate_size": 128}
QWEN = {"model_type": "qwen3_moe", "num_hidden_layers": 2, "intermediate_size": 64, "moe_intermediate_size": 32,
        "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": []}
# Layers 1 and 3 would have experts, but for the list.
DENSE_LAYERS = {**QWEN, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
SHARED = {"model_type": "qwen2_moe", "num_hidden_layers": 1, "moe_intermediate_size": 32, "num_experts": 4,
          "num_experts_per_tok": 2, "shared_expert_intermediate_size": 64, "intermediate_size": 64}


def make_plain(folder, fields):
    from tokenizers import Tokenizer, models
    torch.manual_seed(5)
    fields = {**SIZES, **fields}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).half().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2",
                            pad_token="w0").save_pretrained(folder)


def write_case(out, packed, dequantized, config):
    """The folder `packed`, and the logits of the tensors `dequantized` under the plain `config`."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.loads((packed / "config.json").read_text())
    text.get("quantization_config", {}).pop("meta", None)  # of the run that packed it
    (out / "config.json").write_text(json.dumps(text, indent=1) + "\n")
    shutil.copyfile(packed / "model.safetensors", out / "model.safetensors")
    with tempfile.TemporaryDirectory() as floats:
        save_file({name: value.float().contiguous() for name, value in dequantized.items()},
                  f"{floats}/model.safetensors", {"format": "pt"})
        pathlib.Path(floats, "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
        model = AutoModelForCausalLM.from_pretrained(floats, dtype=torch.float32, attn_implementation="eager")
    ids = torch.randint(0, VOCAB, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model.eval()(ids).logits
    save_file({"input_ids": ids, "logits": logits.contiguous()}, out / "expected.safetensors")
    print(out.name, [round(x, 4) for x in logits[0, -1, :4].tolist()])


def plain_config(folder):
    return json.loads((folder / "config.json").read_text())


def gptq_case(out, fields, **settings):
    """By GPTQModel: quantized over random tokens, saved, loaded again, dequantized by its own PyTorch kernel."""
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
    with tempfile.TemporaryDirectory() as where:
        plain, packed = pathlib.Path(where, "plain"), pathlib.Path(where, "packed")
        make_plain(plain, fields)
        model = GPTQModel.load(str(plain), QuantizeConfig(device="cpu", **settings))
        draw = torch.Generator().manual_seed(2)
        texts = [{"input_ids": torch.randint(0, VOCAB, (64,), generator=draw).tolist(), "attention_mask": [1] * 64}
                 for _ in range(32)]
        model.quantize(texts, batch_size=1, backend=BACKEND.TORCH)
        model.save(str(packed))
        loaded = GPTQModel.load(str(packed), device="cpu", backend=BACKEND.TORCH)
        stored = load_file(packed / "model.safetensors")
        values = {name: value for name, value in stored.items()
                  if not name.endswith((".qweight", ".qzeros", ".scales", ".g_idx"))}
        for name, module in loaded.model.named_modules():
            if f"{name}.qweight" not in stored:
                continue
            module.scales = stored[f"{name}.scales"].float()  # loading may have rounded them
            values[f"{name}.weight"] = module.dequantize_weight().T
        missing = {name.removesuffix(".qweight") + ".weight" for name in stored if name.endswith(".qweight")} - set(values)
        assert not missing, missing
        write_case(out, packed, values, plain_config(plain))


def compressed_case(out, fields, **weights):
    """By compressed-tensors: its compressor packs codes rounded to nearest, and unpacks them."""
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    with tempfile.TemporaryDirectory() as where:
        plain, packed = pathlib.Path(where, "plain"), pathlib.Path(where, "packed")
        make_plain(plain, fields)
        args = QuantizationArgs(num_bits=4, type="int", strategy="group", **weights)
        compressor, stored, values = PackedQuantizationCompressor(), {}, {}
        for name, value in load_file(plain / "model.safetensors").items():
            linear = value.ndim == 2 and not any(word in name for word in ("embed", "lm_head", "gate.weight"))
            if not linear:
                stored[name] = values[name] = value
                continue
            groups = value.float().unflatten(1, (-1, args.group_size))
            scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
            module = name.removesuffix(".weight")
            parts = {"weight": value.float(), "weight_scale": scale, "weight_zero_point": zero}
            made = compressor.compress(parts, QuantizationScheme(targets=["Linear"], weights=args))
            stored.update({f"{module}.{part}": tensor for part, tensor in made.items()})
            values[name] = compressor.decompress(made, QuantizationScheme(targets=["Linear"], weights=args))["weight"]
        packed.mkdir()
        save_file({name: value.contiguous() for name, value in stored.items()}, packed / "model.safetensors",
                  {"format": "pt"})
        group = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json()), "input_activations": None,
                 "output_activations": None}
        config = plain_config(plain)
        quantization = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
                        "quantization_status": "compressed", "config_groups": {"group_0": group},
                        "kv_cache_scheme": None}
        (packed / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
        write_case(out, packed, values, config)


def main():
    out = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as where:
        plain = pathlib.Path(where)
        make_plain(plain, DENSE_LAYERS)
        write_case(out / "dense_layers", plain, load_file(plain / "model.safetensors"), plain_config(plain))
    gptq_case(out / "gptq_v2_act_order", LLAMA, bits=4, group_size=32, desc_act=True, sym=False, format="gptq_v2")
    gptq_case(out / "gptq_v2_8bit", LLAMA, bits=8, group_size=64, desc_act=False, sym=True, format="gptq_v2")
    gptq_case(out / "gptq_qwen3_moe", QWEN, bits=4, group_size=32, desc_act=True, sym=False)
    compressed_case(out / "ct_qwen2_moe", SHARED, group_size=32, symmetric=False)


if __name__ == "__main__":
    main()
