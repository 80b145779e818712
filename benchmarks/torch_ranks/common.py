"""What the modes of torch_ranks_step.py share: a rank's part of a weight, and AdamW with a norm over all ranks.

A mode is a class made from (args, shape, weights), weights being those of the whole Model or None for random ones. It has
step(inputs, targets), of [M, B, T] token ids of all ranks: one optimizer step, whose result, added over the ranks, is the
mean loss; and norm, that of the gradients before clipping.
"""

import torch
import torch.distributed as dist

from torch_gpu_model import Model, Shape
from torch_gpu_step import BETAS, DECAY, EPS

CLIP = 1.0


def rope_of(shape):
    """cos and sin [T, 1, size / 2]"""
    model = Model(Shape("llama", 0, shape.hidden, shape.heads, 8, 64, 1, shape.length), False)
    return model.cos, model.sin


def cut(name, whole, rank, ranks):
    """A tensor rank's part of a weight of Model: columns cut the outputs [N, K] of each part, rows the inputs."""
    if "norm" in name:
        return whole
    if "projection" in name or "down" in name:
        return whole.chunk(ranks, dim=1)[rank]
    parts = 3 if "qkv" in name else 2 if "gate_up" in name else 1
    return whole.unflatten(0, (parts, ranks, -1))[:, rank].flatten(0, 1)


def adamw(parameters):
    groups = [
        {"params": [p for p in parameters if (p.dim() >= 2) == matrix], "weight_decay": decay}
        for matrix, decay in ((True, DECAY), (False, 0.0))
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-4, betas=BETAS, eps=EPS, fused=True)


class RankAdamW:
    """PyTorch's fused AdamW over float32 masters of this rank's weights; replicated ones count once in the norm."""

    def __init__(self, weights, replicated):
        self.weights, self.norm = weights, None
        self.replicated = torch.tensor([any(w is r for r in replicated) for w in weights], device=weights[0].device)
        self.masters = [w.detach().float() for w in weights]
        for master in self.masters:
            master.grad = torch.empty_like(master)
        self.adamw = adamw(self.masters)

    @torch.no_grad()
    def step(self, grads):
        squares = torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32)).square()
        own = torch.where(self.replicated, 0, squares).sum()
        dist.all_reduce(own)
        self.norm = (own + torch.where(self.replicated, squares, 0).sum()).sqrt()
        torch._foreach_mul_(grads, (CLIP / (self.norm + 1e-6)).clamp(max=1.0).to(grads[0].dtype))
        torch._foreach_copy_([m.grad for m in self.masters], grads)
        self.adamw.step()
        torch._foreach_copy_([w.detach() for w in self.weights], self.masters)


def add_over_ranks(tensors):
    """One all-reduce for many small tensors."""
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    torch._foreach_copy_(tensors, [part.view_as(t) for part, t in zip(flat.split([t.numel() for t in tensors]), tensors)])
