#!/usr/bin/env python3
"""Writes src/infer/testdata/beam_cases.json: beam searches of transformers' generate() over a model that is a formula.

    python3 tests/models/make_beam_cases.py        # wants transformers and torch

The logit of token v behind `last` at position p (0: the prompt's first token) is
(last * 7919 + p * 104729 + v * 12553 + (last + 3) * (v + 5) * (p + 7) * 641) % 100003 / 12500.
"""
import json
import pathlib
import random

import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

VOCAB = 29
OUT = pathlib.Path(__file__).resolve().parents[2] / "src/infer/testdata/beam_cases.json"


class Formula(PreTrainedModel, GenerationMixin):
    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__(config)
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}

    def forward(self, input_ids, **_):
        last, v = input_ids[:, -1:].long(), torch.arange(VOCAB)[None, :]
        p = input_ids.shape[1] - 1
        logits = (last * 7919 + p * 104729 + v * 12553 + (last + 3) * (v + 5) * (p + 7) * 641) % 100003 / 12500
        return CausalLMOutput(logits=logits.float()[:, None, :])


def main():
    draw, model, cases = random.Random(3), Formula(PretrainedConfig(vocab_size=VOCAB, num_hidden_layers=1)), []
    for number in range(72):
        beams, prompt = draw.choice([2, 3, 4, 5, 8, 10]), [draw.randrange(VOCAB) for _ in range(1 + number % 3)]
        case = {
            "prompt": prompt,
            "beams": beams,
            "length_penalty": draw.choice([-1.0, 0.0, 0.6, 1.0, 2.0]),
            "early_stopping": [False, True, "never"][number % 3],
            "ends": sorted(draw.sample(range(VOCAB), draw.choice([0, 1, 1, 2, 5]))),
            "max_tokens": draw.choice([1, 4, 9, 14, 20]),
        }
        settings = GenerationConfig(num_beams=beams, num_return_sequences=beams, do_sample=False,
                                    length_penalty=case["length_penalty"], early_stopping=case["early_stopping"],
                                    eos_token_id=case["ends"] or None, pad_token_id=VOCAB,
                                    max_new_tokens=case["max_tokens"], return_dict_in_generate=True, output_scores=True,
                                    use_cache=False)
        out = model.generate(torch.tensor([prompt]), generation_config=settings)
        case["texts"] = [[i for i in text[len(prompt):] if i != VOCAB] for text in out.sequences.tolist()]
        case["scores"] = [round(score, 5) for score in out.sequences_scores.tolist()]
        cases.append(case)
    OUT.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
