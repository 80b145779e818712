"""Modes against one rank: the losses of two steps, and the norms of their gradients, in float32 from the same weights."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from torch_gpu_model import Model
from torch_ranks.common import CLIP, adamw

TOLERANCE = 1e-5  # of float32 sums in another order, at losses near 5.5 and norms near 1
STEPS = 2


def one_rank(model, inputs, targets):
    """[(loss, norm)] of unsharded steps."""
    optimizer, figures = adamw(list(model.parameters())), []
    for _ in range(STEPS):
        losses = [model(ids, wanted) / len(inputs) for ids, wanted in zip(inputs, targets)]
        for loss in losses:
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        figures.append((sum(loss.item() for loss in losses), norm.item()))
    return figures


def many_ranks(mode, args, shape, weights, inputs, targets):
    torch.manual_seed(1337 + dist.get_rank())
    peer, figures = mode(args, shape, weights), []
    for _ in range(STEPS):
        loss = peer.step(inputs, targets)
        dist.all_reduce(loss)
        figures.append((loss.item(), peer.norm.item()))
    return figures


def check(modes, args, shape):
    """modes: name -> (class, changed options). False if any of them differs."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(1)
    model = Model(shape, False)
    weights = copy.deepcopy(model.state_dict())
    ids = torch.randint(0, shape.vocab, (args.micro_batches, shape.batch, shape.length + 1))
    inputs, targets = ids[:, :, :-1].contiguous(), ids[:, :, 1:].contiguous()
    wanted, good = one_rank(model, inputs, targets), True
    for name, (mode, changes) in modes.items():
        options = copy.copy(args)
        vars(options).update(changes)
        found = many_ranks(mode, options, shape, weights, inputs, targets)
        apart = max(abs(a - b) for pair in zip(wanted, found) for a, b in zip(*pair))
        good &= apart <= TOLERANCE
        if dist.get_rank() == 0:
            losses = ", ".join(f"{loss:.6f} (norm {norm:.6f})" for loss, norm in found)
            print(f"{name}: {losses}; from one rank {apart:.1e}: {'good' if apart <= TOLERANCE else 'DIFFERENT'}")
    return good
