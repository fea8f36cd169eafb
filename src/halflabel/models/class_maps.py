"""Class-activation maps: the places of an image that are evidence for a class.

The gallery of the run page and the review page show them as heat maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from halflabel.errors import UserError
from halflabel.models.heads import Head, Model

Floats = NDArray[np.float32]

_BATCH_SIZE = 16


def compute_class_maps(model: Model, images: Tensor, classes: Sequence[int]) -> Floats:
    """Compute the class maps A_c of a model: (B, 3, H, W) uint8 images -> (B, K, h, w), for the K given classes.

    The model is set to evaluation mode. Without a backbone, `images` are cached maps (B, D, h, w).
    Memory: the maps of all C classes for 16 images at a time.
    """
    head = model.head
    if type(head).class_maps is Head.class_maps:
        raise UserError(
            f"the head {type(head).__name__} has no class maps",
            "train by bce, or by another method whose head scores places",
        )
    columns = torch.as_tensor(list(classes), dtype=torch.long)
    device = next(model.parameters()).device
    model.eval()
    batches = []
    with torch.no_grad():
        for first in range(0, len(images), _BATCH_SIZE):
            features = model.features(images[first : first + _BATCH_SIZE].to(device))
            batches.append(head.class_maps(features)[:, columns.to(device)].float().cpu())
    maps: Floats = torch.cat(batches).numpy()
    return maps


def heat_map(maps: NDArray[Any], size: tuple[int, int]) -> Floats:
    """Scale class maps to heat in [0, 1] and enlarge them: (..., h, w) -> (..., H, W).

        M_c = ReLU(A_c) / max ReLU(A_c)    (Wang 2023, eq. 1), enlarged bilinearly

    A map without a positive value gives 0 everywhere: no place is evidence for the class.
    """
    positive = np.maximum(np.asarray(maps, dtype=np.float32), 0)
    highest = positive.max(axis=(-2, -1), keepdims=True)
    scaled = positive / np.where(highest > 0, highest, 1)
    flat = torch.from_numpy(scaled.reshape(-1, 1, *scaled.shape[-2:]))
    enlarged: Floats = interpolate(flat, size=size, mode="bilinear", align_corners=False).numpy()
    return enlarged.reshape(*scaled.shape[:-2], *size).clip(0, 1)


def visible_box(view: Any, height: int, width: int) -> tuple[float, float, float, float]:
    """The part of a photo that a plain view shows the model: left, top, right, bottom as shares of its sides."""
    if view.resize != "crop":
        return 0.0, 0.0, 1.0, 1.0
    side = view.crop_pct * min(height, width)
    left, top = (width - side) / 2 / width, (height - side) / 2 / height
    return left, top, 1 - left, 1 - top


def heat_map_on_photo(maps: NDArray[Any], size: tuple[int, int], box: tuple[float, float, float, float]) -> Floats:
    """The heat map (H, W) of a photo from one class map (h, w) of its part `box`; 0 outside of the box."""
    left, top, right, bottom = (
        round(share * side) for share, side in zip(box, (size[1], size[0], size[1], size[0]), strict=True)
    )
    heat = np.zeros(size, np.float32)
    box_size = max(1, bottom - top), max(1, right - left)
    heat[top : top + box_size[0], left : left + box_size[1]] = heat_map(maps, box_size)
    return heat
