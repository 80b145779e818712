"""GPT-2 and Llama shapes in PyTorch for the GPU peers, with linears in bf16 or FP8.

FP8 is tensorwise dynamic scaling: each operand of the three products of a linear is scaled by its own amax (E4M3
forward, E5M2 for gradients) and multiplied by torch._scaled_mm. Embeddings, attention and the head stay bf16.
"""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass
class Shape:
    family: str  # gpt2 | llama
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocab: int
    batch: int
    length: int

    def matrix_parameters(self):
        """Weights used in GEMMs: each costs 6 FLOPs per token, forward and backward."""
        mlp = (3 if self.family == "llama" else 2) * self.hidden * self.intermediate
        return self.layers * (4 * self.hidden**2 + mlp) + self.vocab * self.hidden

    def flops(self):
        """Forward and backward of a step; attention counts half of its square (causal)."""
        attention = 12 * self.layers * self.hidden * self.length**2 * self.batch / 2
        return 6 * self.matrix_parameters() * self.batch * self.length + attention


SHAPES = {
    "gpt3-5b-8layers": Shape("gpt2", 8, 4096, 32, 16384, 51200, 4, 2048),
    "llama2-7b-8layers": Shape("llama", 8, 4096, 32, 11008, 32000, 2, 4096),
    "llama2-7b": Shape("llama", 32, 4096, 32, 11008, 32000, 1, 4096),
    "gpt2-1558m": Shape("gpt2", 48, 1600, 25, 6400, 50257, 16, 1024),
    "gpt2-124m": Shape("gpt2", 12, 768, 12, 3072, 50257, 16, 1024),
}


def quantize(x, dtype):
    """FP8 codes and the factor that restores the values."""
    scale = torch.finfo(dtype).max / x.abs().amax().float().clamp(min=1e-12)
    limit = torch.finfo(dtype).max
    return (x.float() * scale).clamp(-limit, limit).to(dtype), scale.reciprocal()


def product(a, b, a_scale, b_scale, fast):
    """a [M, K] row-major times b [K, N], which must be column-major."""
    return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16, use_fast_accum=fast)


@torch._dynamo.allow_in_graph
class FP8Product(torch.autograd.Function):
    """y = x w^T, dx = dy w, dw = dy^T x, all three from FP8 operands."""

    @staticmethod
    def forward(ctx, x, weight):
        x8, x_scale = quantize(x, torch.float8_e4m3fn)
        w8, w_scale = quantize(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        return product(x8, w8.t(), x_scale, w_scale, True)

    @staticmethod
    def backward(ctx, dy):
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        dy8, dy_scale = quantize(dy, torch.float8_e5m2)
        dx = product(dy8, w8.t().contiguous().t(), dy_scale, w_scale, False)
        dw = product(dy8.t().contiguous(), x8.t().contiguous().t(), dy_scale, x_scale, False)
        return dx, dw


class FP8Linear(nn.Linear):
    def forward(self, x):
        y = FP8Product.apply(x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def attend(q, k, v):
    """[B, T, heads, size] each -> [B, T, hidden]"""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class GPT2Block(nn.Module):
    def __init__(self, shape, linear):
        super().__init__()
        width, self.heads = shape.hidden, shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, shape.intermediate), linear(shape.intermediate, width)

    def forward(self, x, rope):
        q, k, v = (t.unflatten(2, (self.heads, -1)) for t in self.qkv(self.norm1(x)).chunk(3, dim=2))
        x = x + self.projection(attend(q, k, v))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


def rotate(x, rope):
    """Pairs of halves, by angles [T, 1, size / 2]."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, shape, linear):
        super().__init__()
        width, self.heads = shape.hidden, shape.heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.projection = linear(width, 3 * width, bias=False), linear(width, width, bias=False)
        self.gate_up = linear(width, 2 * shape.intermediate, bias=False)
        self.down = linear(shape.intermediate, width, bias=False)

    def forward(self, x, rope):
        q, k, v = (t.unflatten(2, (self.heads, -1)) for t in self.qkv(self.norm1(x)).chunk(3, dim=2))
        x = x + self.projection(attend(rotate(q, rope), rotate(k, rope), v))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=2)
        return x + self.down(functional.silu(gate) * up)


class Model(nn.Module):
    """Mean cross-entropy of a batch. The vocabulary is padded to a multiple of 64 rows."""

    def __init__(self, shape, fp8):
        super().__init__()
        linear, llama = FP8Linear if fp8 else nn.Linear, shape.family == "llama"
        rows = (shape.vocab + 63) // 64 * 64
        self.tokens = nn.Embedding(rows, shape.hidden)
        self.positions = None if llama else nn.Embedding(shape.length, shape.hidden)
        block = LlamaBlock if llama else GPT2Block
        self.blocks = nn.ModuleList(block(shape, linear) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5) if llama else nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, rows, bias=False)
        if not llama:
            self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)
        half = shape.hidden // shape.heads // 2
        speeds = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(shape.length, dtype=torch.float32), speeds)[:, None, :]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
