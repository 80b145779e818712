"""Tensor and sequence parallel by parallelize_module: the layers of torch_gpu_model.py, cut by DTensor.

As torchtitan's plan, with one product for queries, keys and values and one for gate and up, whose rows go to the ranks
part by part. With --async-tp the compiler splits gathers and scatters and runs them beside the products next to them.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from torch_gpu_model import Model
from torch_ranks.common import RankAdamW, add_over_ranks, cut


def columns():
    return ColwiseParallel(input_layouts=Shard(1))


def rows():
    return RowwiseParallel(output_layouts=Shard(1))


def parallelize(model, mesh):
    """x [B, T/p, H] between the layers."""
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    model.tokens.register_forward_hook(lambda module, args, x: x.clone())  # waits: compiled blocks take plain tensors
    for block in model.blocks:
        block.heads //= mesh.size()
        plan = {"norm1": SequenceParallel(), "qkv": columns(), "projection": rows()}
        plan |= {"norm2": SequenceParallel(), "gate_up": columns(), "down": rows()}
        parallelize_module(block, mesh, plan)


class DTensorParallel:
    def __init__(self, args, shape, weights):
        self.ranks = dist.get_world_size()
        mesh = init_device_mesh(args.device, (self.ranks,))
        if args.async_tp:
            from torch.distributed._symmetric_memory import enable_symm_mem_for_group

            torch._inductor.config._micro_pipeline_tp = True
            enable_symm_mem_for_group(mesh.get_group().group_name)
        self.model = Model(shape, False)
        parallelize(self.model, mesh)
        named = dict(self.model.named_parameters())
        local = {name: weight.detach().to_local() for name, weight in named.items()}
        if weights:
            for name, weight in local.items():
                weight.copy_(cut(name, weights[name], dist.get_rank(), self.ranks))
        for block in self.model.blocks if args.compile else []:
            block.compile()
        self.weights = list(named.values())
        self.optimizer = RankAdamW(list(local.values()), [weight for name, weight in local.items() if "norm" in name])

    @property
    def norm(self):
        return self.optimizer.norm

    def step(self, inputs, targets):
        total = 0
        for ids, wanted in zip(inputs, targets):
            with loss_parallel():
                loss = self.model(ids, wanted) / len(inputs)
                loss.backward()
            total = total + loss.detach().full_tensor()
        for weight in self.weights:  # the embedding's gradient comes whole
            if weight.grad.placements != weight.placements and weight.placements[0].is_shard():
                weight.grad = weight.grad.redistribute(placements=weight.placements)
        local = [weight.grad.to_local() for weight in self.weights]
        partial = [own for weight, own in zip(self.weights, local) if weight.grad.placements[0].is_partial()]
        if partial:  # a rank's norms have seen its rows alone
            add_over_ranks(partial)
        self.optimizer.step(local)
        self.model.zero_grad(set_to_none=True)
        return total / self.ranks
