"""Input checks of all metrics: scores and labels in {-1, 0, +1} of one shape, on any device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import UserError

ArrayLike = Tensor | NDArray[Any]

_ROW_BLOCK_ENTRIES = 1 << 23


def as_tensor(array: ArrayLike) -> Tensor:
    """Convert to a tensor without gradient that shares the memory where possible."""
    if isinstance(array, np.ndarray) and any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # Memory-mapped and Arrow arrays are read-only: torch warns about writes, but no metric writes to its inputs.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)
        return torch.as_tensor(array).detach()


def as_labels(labels: ArrayLike, name: str = "labels") -> Tensor:
    """Convert labels to an integer tensor (N, C), and check that it holds only -1, 0 and +1."""
    table = as_tensor(labels)
    if table.ndim != 2:
        raise UserError(
            f"{name} have the shape {tuple(table.shape)}", "pass a table of images by classes, shape (N, C)"
        )
    if table.dtype == torch.bool or table.is_floating_point() or table.is_complex():
        raise UserError(
            f"{name} have the type {table.dtype}", "pass int8: +1 present, -1 absent, 0 unknown (not True/False)"
        )
    if table.numel():
        low, high = (int(bound) for bound in table.aminmax())
        if low < -1 or high > 1:
            raise UserError(
                f"{name} hold the value {low if low < -1 else high}", "use +1 present, -1 absent, 0 unknown"
            )
    return table


def as_pair(scores: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    """Check and convert: floating-point scores (N, C) without NaN, and labels (N, C) on the same device."""
    table = as_tensor(scores)
    if table.device.type == "mps":
        table = table.cpu()  # MPS has no 64-bit floats, which counts need
    if not table.is_floating_point():
        table = table.to(torch.float64)
    known = as_labels(labels).to(table.device)
    if table.shape != known.shape:
        raise UserError(
            f"scores have the shape {tuple(table.shape)} and labels {tuple(known.shape)}",
            "give one score per label: both images by classes, shape (N, C)",
        )
    # The maximum is NaN if any score is; isnan() would need a table of the size of the scores.
    if table.numel() and bool(table.max().isnan()):
        image, cls = table.isnan().nonzero()[0].tolist()
        raise UserError(
            f"the score of image {image} for class {cls} is NaN",
            "check for a diverged training or a division by zero; remove the image, or give it a number",
        )
    return table, known


def row_blocks(scores: Tensor) -> Iterator[slice]:
    """Yield slices of images that limit the working memory of an (N, C) metric to about ten million entries."""
    step = max(1, _ROW_BLOCK_ENTRIES // max(1, scores.shape[1]))
    for start in range(0, scores.shape[0], step):
        yield slice(start, start + step)
