"""FSDP2: fully_shard of each block, bf16 parameters, float32 gradients and masters; ranks share the micro-batches."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from torch_gpu_model import Model
from torch_ranks.common import CLIP, adamw


class FullySharded:
    def __init__(self, args, shape, weights):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        compute = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        self.model = Model(shape, args.fp8)
        torch.set_default_dtype(compute)
        if weights:
            self.model.load_state_dict(weights)
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
        for block in self.model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(self.model, mp_policy=policy)
        for block in self.model.blocks if args.compile else []:
            block.compile()
        self.adamw = adamw(list(self.model.parameters()))

    @property
    def norm(self):
        return self.total_norm.full_tensor()

    def step(self, inputs, targets):
        own = list(zip(inputs, targets))[self.rank :: self.ranks]
        total = 0
        for i, (ids, wanted) in enumerate(own):
            self.model.set_requires_gradient_sync(i + 1 == len(own))
            loss = self.model(ids, wanted) / len(own)
            loss.backward()
            total = total + loss.detach()
        self.total_norm = nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.adamw.step()
        self.model.zero_grad(set_to_none=True)
        return total / self.ranks
