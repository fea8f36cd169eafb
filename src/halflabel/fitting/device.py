"""The choice of the device that trains and scores."""

from __future__ import annotations

from typing import Literal, cast

import torch

from halflabel.errors import UserError


def choose_device(name: str, *, fall_back: bool = False) -> Literal["cpu", "cuda", "mps"]:
    """The torch device for a name: "auto" is a CUDA GPU if there is one, else the CPU.

    With `fall_back`, "cuda" on a machine without a GPU means the CPU: a run trained on a GPU can score anywhere.

    >>> choose_device("cpu")
    'cpu'
    """
    if name not in ("auto", "cpu", "cuda", "mps"):
        raise UserError(f"{name!r} is not a device", "use auto, cpu, cuda or mps")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu and not fall_back:
        raise UserError("there is no CUDA device here", "use --device cpu")
    if name in ("auto", "cuda"):
        return "cuda" if has_gpu else "cpu"
    return cast(Literal["cpu", "mps"], name)
