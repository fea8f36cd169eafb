"""Sharded training (FSDP): each process holds a part of weights, gradients and optimizer state.

For backbones that are too large for one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.system import distributed

_MIN_BLOCK = 100_000  # weights of a block that is gathered by itself


class ShardedModel:
    """A sharded copy of a model: 16 bytes per weight with Adam, over all processes together.

    FSDP gathers the weights block by block while they are needed, and gives the mean gradient over processes.
    """

    def __init__(self, plain: Model, device: torch.device) -> None:
        gpus, local_processes = torch.cuda.device_count(), distributed.local_world_size()
        if device.type == "cuda" and gpus < local_processes:
            raise UserError(
                f"--shard needs one GPU per process, and {local_processes} processes share {gpus}",
                "start fewer processes (--nproc-per-node), or leave --shard out",
            )
        self.model = deepcopy(plain)
        mesh = init_device_mesh(device.type, (distributed.world_size(),))
        for block in (*_blocks(self.model), self.model):
            fully_shard(block, mesh=mesh)
        self.model.to(device)

    @torch.no_grad()
    def gather_into(self, plain: Model) -> Model:
        """Copy the whole weights into the plain model. All processes must call this together."""
        plain_state = plain.state_dict()
        for name, value in self.model.state_dict().items():
            plain_state[name].copy_(_gather(value))
        return plain

    @torch.no_grad()
    def load_from(self, plain: Model) -> None:
        """Copy this process's part of the plain model's weights."""
        plain_state = plain.state_dict()
        for name, value in self.model.state_dict().items():
            value.copy_(_shard_like(plain_state[name], value))

    @staticmethod
    def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors. All processes must call this together."""
        return {name: _gather(value) for name, value in tensors.items()}

    @staticmethod
    def shard_optimizer_state(tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """The tensors of a checkpoint; those of the optimizer ("optimizer.NUMBER/…") sharded as its parameters are."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        sharded = dict(tensors)
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                number = int(key.removeprefix("optimizer.").partition("/")[0])
                sharded[key] = _shard_like(value, parameters[number])
        return sharded

    @staticmethod
    @torch.no_grad()
    def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> None:
        """Scale all gradients so that their norm, over all processes, is at most `max_norm`."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        parts = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
        others = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
        if not parts:
            return
        total = torch.stack([part.square().sum() for part in parts]).sum()
        dist.all_reduce(total)
        for gradient in others:  # the method's parameters are not sharded: their gradients are equal in all processes
            total = total + gradient.square().sum()
        scale = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1)
        for gradient in (*parts, *others):
            gradient.mul_(scale)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The larger members of the outermost ModuleLists and Sequentials: they run one after the other."""
    for child in module.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            members = child.children()
            yield from (block for block in members if sum(p.numel() for p in block.parameters()) >= _MIN_BLOCK)
        else:
            yield from _blocks(child)


def _gather(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _shard_like(value: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
