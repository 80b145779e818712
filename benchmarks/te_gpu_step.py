#!/usr/bin/env python3
"""Times one training step in Transformer Engine on the GPU: a peer of `octet-bench train-step --device cuda`.

Its TransformerLayer (fused norms, linears, attention, activations) under a recipe of FP8; weights and gradients bf16,
embedding and head in PyTorch, loss through torch.compile. A step is forward, backward, clipping at 1.0 and its FusedAdam
over float32 masters and moments, as ours. Random tokens; times are medians by CUDA events, without waits in between.
Written for transformer_engine, transformer_engine_cu13 and transformer_engine_torch 2.20 with PyTorch 2.11.
"""

import argparse
import json
import statistics

import torch
import transformer_engine
import transformer_engine.pytorch as te
from torch import nn
from torch.nn import functional
from transformer_engine.common import recipe

from torch_gpu_model import SHAPES

RECIPES = {
    "bf16": None,
    "fp8-current": recipe.Float8CurrentScaling,
    "fp8-delayed": recipe.DelayedScaling,
    "fp8-block": recipe.Float8BlockScaling,
}
FAMILIES = {
    "gpt2": {"normalization": "LayerNorm", "activation": "gelu", "bias": True},
    "llama": {"normalization": "RMSNorm", "activation": "swiglu", "bias": False},
}


@torch.compile
def head_loss(hidden, weight, targets):
    return functional.cross_entropy((hidden @ weight.t()).flatten(0, 1).float(), targets.flatten())


class Model(nn.Module):
    """A decoder of Transformer Engine's layers, parameters in bf16."""

    def __init__(self, shape):
        super().__init__()
        llama = shape.family == "llama"
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = None if llama else nn.Embedding(shape.length, shape.hidden)
        self.blocks = nn.ModuleList(
            te.TransformerLayer(
                shape.hidden,
                shape.intermediate,
                shape.heads,
                layer_number=layer + 1,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                self_attn_mask_type="causal",
                attn_input_format="bshd",
                fuse_qkv_params=True,
                params_dtype=torch.bfloat16,
                **FAMILIES[shape.family],
            )
            for layer in range(shape.layers)
        )
        norm = te.RMSNorm if llama else te.LayerNorm
        self.norm = norm(shape.hidden, params_dtype=torch.bfloat16)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.angles = te.RotaryPositionEmbedding(shape.hidden // shape.heads)(shape.length) if llama else None  # float32
        self.to(torch.bfloat16)

    def forward(self, ids, targets, scaling):
        hidden = self.embedding(ids)
        if self.positions is not None:
            hidden = hidden + self.positions.weight[: ids.shape[1]]
        with te.autocast(enabled=scaling is not None, recipe=scaling):
            for block in self.blocks:
                hidden = block(hidden, rotary_pos_emb=self.angles)
        return head_loss(self.norm(hidden), self.head.weight, targets)


def measure(args, shape):
    torch.manual_seed(1337)
    with torch.device("cuda"):
        model = Model(shape)
        ids = torch.randint(0, shape.vocab, (shape.batch, shape.length + 1))
    parameters = list(model.parameters())
    optimizer = te.optimizers.FusedAdam(parameters, lr=1e-4, weight_decay=0.1, master_weights=True)
    scaling = RECIPES[args.recipe]() if RECIPES[args.recipe] else None
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    marks, losses = [], []
    for _ in range(args.warmup + args.steps):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        events[0].record()
        loss = model(inputs, targets, scaling)
        loss.backward()
        losses.append(loss.detach())
        events[1].record()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        events[2].record()
        marks.append(events)
    torch.cuda.synchronize()
    marks = marks[args.warmup :]
    seconds = [begin.elapsed_time(end) / 1e3 for begin, _, end in marks]
    products = statistics.median(begin.elapsed_time(middle) / 1e3 for begin, middle, _ in marks)
    median, tokens = statistics.median(seconds), shape.batch * shape.length
    return {
        "program": f"Transformer Engine {transformer_engine.__version__} (PyTorch {torch.__version__})",
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "model": args.model,
        "layers": shape.layers,
        "batch": shape.batch,
        "length": shape.length,
        "dtype": args.recipe,
        "optimizer": "FusedAdam, float32 masters",
        "steps": args.steps,
        "parameters": sum(p.numel() for p in parameters),
        "median_ms": median * 1e3,
        "min_ms": min(seconds) * 1e3,
        "forward_backward_ms": products * 1e3,
        "tokens_per_second": tokens / median,
        "model_gflops_per_step": shape.flops() / 1e9,
        "tflops": shape.flops() / median / 1e12,
        "tflops_forward_backward": shape.flops() / products / 1e12,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "first_loss": losses[0].item(),
        "last_loss": losses[-1].item(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="llama2-7b-8layers")
    parser.add_argument("--recipe", choices=list(RECIPES), default="fp8-current")
    parser.add_argument("--steps", type=int, default=15, help="timed ones")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    result = measure(args, SHAPES[args.model])
    print(
        "{program} {model} {dtype} B {batch} S {length}: median {median_ms:.1f} ms, min {min_ms:.1f} ms, "
        "forward+backward {forward_backward_ms:.1f} ms; {tokens_per_second:.0f} tokens/s; {tflops:.0f} TFLOP/s; peak "
        "{gib:.1f} GiB; loss {first_loss:.3f} -> {last_loss:.3f}".format(gib=result["peak_bytes"] / 2**30, **result)
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
