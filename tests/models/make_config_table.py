#!/usr/bin/env python3
"""Writes src/model/testdata/transformers_configs.json: of each family's config class in transformers, the default and
the JSON types of every field, for src/model/hugging_face_defaults_test.cc.

Needs transformers >= 5 and torch:    python tests/models/make_config_table.py
Read the difference before committing it: a changed default is a changed meaning of config.json.
"""
import dataclasses
import json
import pathlib
import types
import typing

import torch
import transformers

FAMILIES = {
    "gpt2": "GPT2Config", "gpt_bigcode": "GPTBigCodeConfig", "gptj": "GPTJConfig", "gpt_neox": "GPTNeoXConfig",
    "opt": "OPTConfig", "bloom": "BloomConfig", "falcon": "FalconConfig", "mpt": "MptConfig", "phi": "PhiConfig",
    "llama": "LlamaConfig", "mistral": "MistralConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config",
    "gemma": "GemmaConfig", "glm": "GlmConfig", "glm4": "Glm4Config", "mixtral": "MixtralConfig", "olmoe": "OlmoeConfig",
    "qwen2_moe": "Qwen2MoeConfig", "qwen3_moe": "Qwen3MoeConfig",
}
OUT = pathlib.Path(__file__).resolve().parents[2] / "src/model/testdata/transformers_configs.json"
JSON_TYPES = {int: "integer", float: "float", bool: "boolean", str: "string", list: "array", dict: "object",
              type(None): "null"}


def json_types(hint):
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return sorted({name for part in typing.get_args(hint) for name in json_types(part)})
    if typing.get_origin(hint) is typing.Literal:
        return ["string"]
    base = typing.get_origin(hint) or hint
    if isinstance(base, type) and issubclass(base, transformers.PreTrainedConfig):
        base = dict
    return [JSON_TYPES[base]] if base in JSON_TYPES else []


def table(cls):
    instance = cls()
    hints = typing.get_type_hints(cls, localns={"torch": torch})
    common = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    rows = {}
    for field in dataclasses.fields(cls):
        if field.name in common:
            continue
        default = field.default if field.default is not dataclasses.MISSING else None
        value = getattr(instance, field.name)
        if field.name == "rope_parameters":
            for key in ("rope_theta", "partial_rotary_factor"):  # old files have them beside rope_parameters
                if key in value:
                    rows[key] = {"default": value[key], "types": ["float"]}
        elif isinstance(value, transformers.PreTrainedConfig):
            rows[field.name] = {"fields": table(type(value))}
        else:
            rows[field.name] = {"default": default, "types": json_types(hints[field.name])}
    return rows


def main():
    families = {name: table(getattr(transformers, cls)) for name, cls in FAMILIES.items()}
    lines = []
    for name, rows in families.items():
        fields = ",\n".join(f"    {json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
        lines.append(f"  {json.dumps(name)}: {{\n{fields}\n  }}")
    header = f'  "transformers": {json.dumps(transformers.__version__)},\n'
    OUT.write_text("{\n" + header + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
