"""Class-activation maps: where in an image a model sees a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from halflabel.models.heads import Model

__all__ = ["activations", "heat", "overlay", "placed", "seen"]

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

_COLOURS = "plasma"
_STRENGTH = 0.75  # of the colour at the hottest place; the photo shows through
_AT_ONCE = 16


def activations(model: Model, images: Tensor, classes: Sequence[int]) -> Floats:
    """The class maps A_c of a model: (B, 3, H, W) uint8 images -> (B, K, h, w), for K chosen classes in their order.

    In evaluation mode, as the model scores plain views; without a backbone `images` are cached maps (B, D, h, w).
    Memory: the maps of all C classes for 16 images at a time.
    """
    import torch

    from halflabel.models.heads import Head

    head = model.head
    if type(head).class_maps is Head.class_maps:
        raise UserError(
            f"the head {type(head).__name__} has no class maps", "train by a method whose head scores places, or bce"
        )
    chosen = torch.as_tensor(list(classes), dtype=torch.long)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = []
            for first in range(0, len(images), _AT_ONCE):
                features = model.features(images[first : first + _AT_ONCE].to(device))
                found.append(head.class_maps(features)[:, chosen.to(device)].float().cpu())
    finally:
        model.train(was_training)
    maps: Floats = torch.cat(found).numpy()
    return maps


def heat(maps: NDArray[Any], size: tuple[int, int]) -> Floats:
    """How hot each pixel is, from 0 to 1: (..., h, w) class maps -> (..., H, W).

        M_c = ReLU(A_c) / max ReLU(A_c)    (Wang 2023, eq. 1), enlarged bilinearly

    A map that is nowhere positive is cold all over: nothing there speaks for the class.
    """
    import torch
    from torch.nn.functional import interpolate

    positive = np.maximum(np.asarray(maps, dtype=np.float32), 0)
    most = positive.max(axis=(-2, -1), keepdims=True)
    scaled = positive / np.where(most > 0, most, 1)
    flat = torch.from_numpy(scaled.reshape(-1, 1, *scaled.shape[-2:]))
    enlarged: Floats = interpolate(flat, size=size, mode="bilinear", align_corners=False).numpy()
    return enlarged.reshape(*scaled.shape[:-2], *size).clip(0, 1)


def overlay(photo: Pixels, hot: Floats) -> Pixels:
    """A photo with its heat on top: (H, W, 3) uint8 and (H, W) in [0, 1] -> (H, W, 3) uint8.

    The hotter a place, the more of the colour; where nothing is hot, the photo is as it was.
    """
    from matplotlib import colormaps

    weight = _STRENGTH * np.sqrt(hot)[..., None]  # the root: what is lukewarm shows too
    colours = colormaps[_COLOURS](hot)[..., :3] * 255
    mixed: Pixels = np.rint((1 - weight) * photo + weight * colours).astype(np.uint8)
    return mixed


def seen(view: Any, high: int, wide: int) -> tuple[float, float, float, float]:
    """The part of a photo that a plain view shows the model: left, top, right, bottom as shares of its sides."""
    if view.resize == "squash":
        return 0.0, 0.0, 1.0, 1.0
    side = view.crop_pct * min(high, wide)
    left, top = (wide - side) / 2 / wide, (high - side) / 2 / high
    return left, top, 1 - left, 1 - top


def placed(maps: NDArray[Any], size: tuple[int, int], box: tuple[float, float, float, float]) -> Floats:
    """The heat of one class map (h, w) on a photo of H × W pixels, of which the model saw the `box`: (H, W)."""
    left, top, right, bottom = (
        round(share * side) for share, side in zip(box, (size[1], size[0], size[1], size[0]), strict=True)
    )
    found = np.zeros(size, np.float32)
    inner = max(1, bottom - top), max(1, right - left)
    found[top : top + inner[0], left : left + inner[1]] = heat(maps, inner)
    return found
