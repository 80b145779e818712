"""Tensor and sequence parallel Llama shapes by functional collectives, as Megatron-LM cuts the layers.

Tokens are gathered in front of columns and scattered behind rows; under FP8 the codes are gathered, with amaxes common to
the ranks. What was gathered is kept for backward.
"""

import functools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn import functional

from torch_gpu_model import attend, product, rotate
from torch_ranks.common import RankAdamW, add_over_ranks, cut, rope_of

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def gather(x, group):
    """Rows of all ranks, of any type."""
    whole = funcol.all_gather_tensor(x.contiguous().view(torch.uint8), 0, group)
    return funcol.wait_tensor(whole).view(x.dtype)


def scatter(x, group):
    return funcol.wait_tensor(funcol.reduce_scatter_tensor(x.contiguous(), "sum", 0, group))


def quantize(x, dtype, group=None):
    amax = x.abs().amax().float()
    if group is not None:
        amax = funcol.wait_tensor(funcol.all_reduce(amax, "max", group))
    limit = torch.finfo(dtype).max
    scale = limit / amax.clamp(min=1e-12)
    return (x.float() * scale).clamp(-limit, limit).to(dtype), scale.reciprocal()


@functools.cache  # one class for all blocks, which the compiler then takes for one
def cut_linear(fp8, columns, group):
    """y [T, N/p] of x [T/p, K] and w [N/p, K] (columns), or y [T/p, N] of x [T, K/p] and w [N, K/p]."""

    @torch._dynamo.allow_in_graph
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            if fp8:
                x, x_scale = quantize(x, E4M3, group if columns else None)
                weight, w_scale = quantize(weight, E4M3)
            else:
                x_scale = w_scale = x.new_zeros(())
            x = gather(x, group) if columns else x
            ctx.save_for_backward(x, x_scale, weight, w_scale)
            y = product(x, weight.t(), x_scale, w_scale, True) if fp8 else x @ weight.t()
            return y if columns else scatter(y, group)

        @staticmethod
        def backward(ctx, dy):
            x, x_scale, weight, w_scale = ctx.saved_tensors
            dy_scale = x_scale
            if fp8:
                dy, dy_scale = quantize(dy, E5M2, None if columns else group)
            dy = dy if columns else gather(dy, group)
            if fp8:
                dx = product(dy, weight.t().contiguous().t(), dy_scale, w_scale, False)
                dw = product(dy.t().contiguous(), x.t().contiguous().t(), dy_scale, x_scale, False)
            else:
                dx, dw = dy @ weight, dy.t() @ x
            return scatter(dx, group) if columns else dx, dw

    class Linear(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            ranks = dist.get_world_size()
            shape = (outputs // ranks, inputs) if columns else (outputs, inputs // ranks)
            self.weight = nn.Parameter(0.02 * torch.randn(shape))

        def forward(self, x):
            return Cut.apply(x, self.weight)

    return Linear


class TensorBlock(nn.Module):
    """x [T/p, H] of B sequences, whose rows are cut as a whole."""

    def __init__(self, shape, fp8, group):
        super().__init__()
        columns, rows = cut_linear(fp8, True, group), cut_linear(fp8, False, group)
        self.batch, self.heads = shape.batch, shape.heads // dist.get_world_size()
        self.norm1, self.norm2 = nn.RMSNorm(shape.hidden, eps=1e-5), nn.RMSNorm(shape.hidden, eps=1e-5)
        self.qkv, self.projection = columns(shape.hidden, 3 * shape.hidden), rows(shape.hidden, shape.hidden)
        self.gate_up, self.down = columns(shape.hidden, 2 * shape.intermediate), rows(shape.intermediate, shape.hidden)

    def forward(self, x, rope):
        qkv = self.qkv(self.norm1(x)).unflatten(0, (self.batch, -1))
        q, k, v = (t.unflatten(2, (self.heads, -1)) for t in qkv.chunk(3, dim=2))
        x = x + self.projection(attend(rotate(q, rope), rotate(k, rope), v).flatten(0, 1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=1)
        return x + self.down(functional.silu(gate) * up)


@torch._dynamo.allow_in_graph
class CutCrossEntropy(torch.autograd.Function):
    """Mean loss of logits [T, V/p] whose classes are cut."""

    @staticmethod
    def forward(ctx, logits, targets, first, group):
        def joined(x, how):
            return funcol.wait_tensor(funcol.all_reduce(x, how, group))

        dtype, logits = logits.dtype, logits.float()
        largest = joined(logits.amax(1), "max")
        exponents = (logits - largest[:, None]).exp()
        total = joined(exponents.sum(1), "sum")
        own = (targets >= first) & (targets < first + logits.shape[1])
        at = torch.where(own, targets - first, 0)
        chosen = joined(torch.where(own, logits.gather(1, at[:, None])[:, 0], 0.0), "sum")
        ctx.save_for_backward(exponents.div_(total[:, None]).to(dtype), own, at)
        return (total.log() + largest - chosen).mean()

    @staticmethod
    def backward(ctx, d):
        probabilities, own, at = ctx.saved_tensors
        dlogits = probabilities.float()
        dlogits.scatter_add_(1, at[:, None], -own.float()[:, None])
        return (dlogits * (d / len(at))).to(probabilities.dtype), None, None, None


class TensorModel(nn.Module):
    def __init__(self, shape, fp8, group):
        super().__init__()
        self.group, self.rank, ranks = group, dist.get_rank(), dist.get_world_size()
        self.rows = (shape.vocab + 128 * ranks - 1) // (128 * ranks) * 128
        self.tokens = nn.Parameter(0.02 * torch.randn(self.rows, shape.hidden))
        self.blocks = nn.ModuleList(TensorBlock(shape, fp8, group) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.head = cut_linear(False, True, group)(shape.hidden, self.rows * ranks)
        self.rope = rope_of(shape)

    def forward(self, ids, targets):
        first = self.rank * self.rows
        ids = ids.flatten() - first
        own = (ids >= 0) & (ids < self.rows)
        x = functional.embedding(torch.where(own, ids, 0), self.tokens) * own[:, None].to(self.tokens.dtype)
        x = funcol.reduce_scatter_tensor_autograd(x, "sum", 0, self.group)
        x = funcol.wait_tensor(x) if not isinstance(x, funcol.AsyncCollectiveTensor) else x.wait()
        for block in self.blocks:
            x = block(x, self.rope)
        return CutCrossEntropy.apply(self.head(self.norm(x)), targets.flatten(), first, self.group)


class TensorParallel:
    def __init__(self, args, shape, weights):
        self.ranks = dist.get_world_size()
        self.model = TensorModel(shape, args.fp8, dist.group.WORLD)
        named = dict(self.model.named_parameters())
        if weights:
            for name, weight in named.items():
                whole = weights["tokens.weight" if name == "tokens" else name]
                weight.data.copy_(cut(name, whole, dist.get_rank(), self.ranks))
        for block in self.model.blocks if args.compile else []:
            block.compile()
        self.norms = [weight for name, weight in named.items() if "norm" in name]
        self.weights = list(named.values())
        self.optimizer = RankAdamW(self.weights, self.norms)

    @property
    def norm(self):
        return self.optimizer.norm

    def step(self, inputs, targets):
        total = 0
        for ids, wanted in zip(inputs, targets):
            loss = self.model(ids, wanted) / len(inputs)
            loss.backward()
            total = total + loss.detach()
        add_over_ranks([weight.grad for weight in self.norms])  # a rank's norms have seen its rows alone
        self.optimizer.step([weight.grad for weight in self.weights])
        self.model.zero_grad(set_to_none=True)
        return total / self.ranks
