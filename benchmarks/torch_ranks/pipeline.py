"""Pipeline parallel Llama shapes by torch.distributed.pipelining: 1F1B, interleaved where a rank has several stages.

A rank's gradients are added up in the weights' type over the micro-batches, as PyTorch does.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from torch_gpu_model import LlamaBlock
from torch_ranks.common import RankAdamW, rope_of


class Stage(nn.Module):
    """Layers [first, first + count) of a Model; ids [B, T] or x [B, T, H] -> x [B, T, H] or logits [B, T, V]"""

    def __init__(self, shape, first, count, rope, recompute):
        super().__init__()
        self.first, self.rope, self.recompute = first, rope, recompute
        self.vocab = (shape.vocab + 63) // 64 * 64
        last = first + count == shape.layers
        self.tokens = nn.Embedding(self.vocab, shape.hidden) if first == 0 else None
        self.blocks = nn.ModuleList(LlamaBlock(shape, nn.Linear) for _ in range(count))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5) if last else None
        self.head = nn.Linear(shape.hidden, self.vocab, bias=False) if last else None
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def load(self, weights):
        for name, parameter in self.named_parameters():
            if name.startswith("blocks."):
                _, index, rest = name.split(".", 2)
                name = f"blocks.{self.first + int(index)}.{rest}"
            parameter.data.copy_(weights[name])

    def forward(self, x):
        x = x if self.tokens is None else self.tokens(x)
        for block in self.blocks:
            x = checkpoint(block, x, self.rope, use_reentrant=False) if self.recompute else block(x, self.rope)
        return x if self.head is None else self.head(self.norm(x))

    def meta(self, shape, dtype):
        """What comes in and goes out, so that no step is spent on finding it out."""
        x = torch.empty(shape.batch, shape.length, shape.hidden, dtype=dtype, device="meta")
        ids = torch.empty(shape.batch, shape.length, dtype=torch.long, device="meta")
        logits = torch.empty(shape.batch, shape.length, self.vocab, dtype=dtype, device="meta")
        return x if self.tokens is None else ids, x if self.head is None else logits


class Pipeline:
    def __init__(self, args, shape, weights):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        count = ranks * args.chunks
        layers = shape.layers // count
        self.first, self.last = rank == 0, rank + 1 == ranks
        rope, device = rope_of(shape), torch.get_default_device()
        stages, modules = [], []
        for index in range(rank, count, ranks):
            module = Stage(shape, index * layers, layers, rope, args.recompute)
            if weights:
                module.load(weights)
            for block in module.blocks if args.compile else []:
                block.compile()
            modules.append(module)
            came, goes = module.meta(shape, torch.get_default_dtype())
            stages.append(PipelineStage(module, index, count, device, input_args=came, output_args=goes))
        self.weights = [weight for module in modules for weight in module.parameters()]
        micro_batches = args.micro_batches

        def loss(logits, targets):
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) / micro_batches

        loss = torch.compile(loss) if args.compile else loss
        if args.chunks == 1:
            self.schedule = Schedule1F1B(stages[0], micro_batches, loss, scale_grads=False)
        else:
            self.schedule = ScheduleInterleaved1F1B(stages, micro_batches, loss, scale_grads=False)
        self.optimizer = RankAdamW(self.weights, [])

    @property
    def norm(self):
        return self.optimizer.norm

    def step(self, inputs, targets):
        losses = [] if self.last else [inputs.new_zeros(()).float()]
        ids = [inputs.flatten(0, 1)] if self.first else []
        wanted = {"target": targets.flatten(0, 1), "losses": losses} if self.last else {}
        self.schedule.step(*ids, **wanted, return_outputs=False)
        self.optimizer.step([weight.grad for weight in self.weights])
        for weight in self.weights:
            weight.grad = None
        return torch.stack([loss.detach() for loss in losses]).sum()
