#!/usr/bin/env python3
"""Writes src/kernels/cpu/optimiser/testdata/torch_updates.json for src/kernels/cpu/optimiser/torch_test.cc: parameters
and moments after each of five steps of torch.optim.AdamW, torch.optim.SGD and LAMB, in float64.

torch has no LAMB: lamb() below is the definition of NVIDIA apex's FusedLAMB (adam_w_mode, bias_correction,
grad_averaging, use_nvlamb=False), without its global gradient clipping, which is an op of its own here.

Needs torch:    python tests/optimisers/make_update_table.py
"""
import json
import pathlib

import torch

OUT = pathlib.Path(__file__).resolve().parents[2] / "src/kernels/cpu/optimiser/testdata/torch_updates.json"
STEPS, SIZE, CLIP = 5, 19, 0.75
ADAM = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-6}
CASES = [
    ("adamw", {**ADAM, "weight_decay": 0.1}),
    ("adamw", {**ADAM, "weight_decay": 0.0}),
    ("sgd", {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}),
    ("sgd", {"momentum": 0.0, "nesterov": False, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "nesterov": False, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("lamb", {**ADAM, "weight_decay": 0.1}),
    ("lamb", {**ADAM, "weight_decay": 0.0}),
]


def lamb(param, state, lr, step, beta1, beta2, eps, weight_decay):
    state.setdefault("m", torch.zeros_like(param))
    state.setdefault("v", torch.zeros_like(param))
    state["m"] = beta1 * state["m"] + (1 - beta1) * param.grad
    state["v"] = beta2 * state["v"] + (1 - beta2) * param.grad**2
    unbiased_m, unbiased_v = state["m"] / (1 - beta1**step), state["v"] / (1 - beta2**step)
    update = unbiased_m / (unbiased_v.sqrt() + eps) + weight_decay * param.data
    ratio = 1.0
    if weight_decay != 0:
        param_norm, update_norm = param.data.norm(), update.norm()
        if param_norm != 0 and update_norm != 0:
            ratio = param_norm / update_norm
    param.data -= lr * ratio * update
    return [state["m"], state["v"]]


def torch_optimizer(name, param, attrs):
    if name == "adamw":
        return torch.optim.AdamW([param], lr=1.0, betas=(attrs["beta1"], attrs["beta2"]), eps=attrs["eps"],
                                 weight_decay=attrs["weight_decay"])
    if name == "sgd":
        return torch.optim.SGD([param], lr=1.0, **attrs)
    return None


def run(name, attrs):
    generator = torch.Generator().manual_seed(7)
    numbers = lambda: torch.randn(SIZE, generator=generator).double()  # exact in float32
    param = torch.nn.Parameter(numbers())
    case = {"op": name, "attrs": attrs, "clip": CLIP, "param": param.tolist(), "steps": []}
    optimizer, state = torch_optimizer(name, param, attrs), {}
    for step in range(1, STEPS + 1):
        gradient, lr = numbers(), 0.0625 / step
        param.grad = gradient * CLIP
        if optimizer is None:
            moments = lamb(param, state, lr, step, **attrs)
        else:
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
            kept = optimizer.state[param]
            moments = [kept[key] for key in ("exp_avg", "exp_avg_sq", "momentum_buffer") if kept.get(key) is not None]
        case["steps"].append({"lr": lr, "gradient": gradient.tolist(), "param": param.tolist(),
                              "moments": [moment.tolist() for moment in moments]})
    return case


if __name__ == "__main__":
    OUT.parent.mkdir(exist_ok=True)
    cases = ",\n".join(json.dumps(run(name, attrs)) for name, attrs in CASES)
    OUT.write_text(f'{{"torch": "{torch.__version__.split("+")[0]}", "cases": [\n{cases}\n]}}\n')
    print(OUT)
