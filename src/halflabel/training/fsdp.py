"""Weights, gradients and optimizer states in parts, one in each process (FSDP): for backbones too large for one GPU."""

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
from halflabel.models.heads import Model
from halflabel.system import distributed as processes

__all__ = ["Sharded"]

_LEAST = 100_000  # weights that are worth a message of their own


class Sharded:
    """A copy of a model in parts: 16 bytes per weight with Adam, over all processes together.

    Weights are put together block by block while they are needed. Gradients come out as the mean over processes.
    """

    def __init__(self, plain: Model, device: torch.device) -> None:
        gpus, here = torch.cuda.device_count(), processes.here()
        if device.type == "cuda" and gpus < here:
            raise UserError(
                f"--shard wants a GPU for each process, and {here} share {gpus}",
                "start fewer processes (--nproc-per-node), or leave --shard out",
            )
        self.model = deepcopy(plain)
        mesh = init_device_mesh(device.type, (processes.count(),))
        for part in (*_blocks(self.model), self.model):
            fully_shard(part, mesh=mesh)
        self.model.to(device)

    @torch.no_grad()
    def gather_into(self, plain: Model) -> Model:
        """Put the weights together in the plain model; all processes at once."""
        here = plain.state_dict()
        for name, value in self.model.state_dict().items():
            here[name].copy_(_whole(value))
        return plain

    @torch.no_grad()
    def take_from(self, plain: Model) -> None:
        """Take the weights of the plain model, each process its parts."""
        given = plain.state_dict()
        for name, value in self.model.state_dict().items():
            value.copy_(_dealt(given[name], value))

    @staticmethod
    def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors with all their parts, which all processes put together at once."""
        return {name: _whole(value) for name, value in tensors.items()}

    @staticmethod
    def deal_out(tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """The tensors of a checkpoint, those of the optimizer ("optimizer.NUMBER/…") in parts as its parameters are."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        found = dict(tensors)
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                number = int(key.removeprefix("optimizer.").partition("/")[0])
                found[key] = _dealt(value, parameters[number])
        return found

    @staticmethod
    @torch.no_grad()
    def clip(parameters: Iterable[nn.Parameter], most: float) -> None:
        """Scale all gradients so that their norm, over all parts, is at most `most`."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        parts = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
        others = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
        if not parts:
            return
        total = torch.stack([part.square().sum() for part in parts]).sum()
        dist.all_reduce(total)
        for gradient in others:  # those of the method are the same everywhere
            total = total + gradient.square().sum()
        scale = (most / (total.sqrt() + 1e-6)).clamp(max=1)
        for gradient in (*parts, *others):
            gradient.mul_(scale)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost lists and sequences of layers: they run one after the other."""
    for child in module.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            members = child.children()
            yield from (part for part in members if sum(p.numel() for p in part.parameters()) >= _LEAST)
        else:
            yield from _blocks(child)


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _dealt(value: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
