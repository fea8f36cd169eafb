"""Class-activation maps: the places of an image that are evidence for a class, as heat maps of the pages."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from halflabel.errors import UserError
from halflabel.features.heads import Head, Model

Floats = NDArray[np.float32]

_BATCH_SIZE = 16
_COLOUR, _OPAQUE = (255, 64, 0), 180  # of the hottest place


def compute_class_maps(model: Model, images: Tensor, classes: Sequence[int]) -> Floats:
    """Compute the class maps of a model for K classes: (B, 3, H, W) uint8 images, or cached maps, -> (B, K, h, w)."""
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
            batch = images[first : first + _BATCH_SIZE].to(device)
            backbone: Any = model.backbone
            features = batch if backbone is None else backbone(batch) if head.needs_maps else backbone.places(batch)
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


def photo_heat_maps(model: Model, view: Any, photo: Tensor, classes: Sequence[int], side: int) -> Floats:
    """Compute the heat maps (K, H, W) of a photo, the longer side of `side` pixels; 0 outside of the view."""
    height, width = photo.shape[1:]
    size = [max(1, round(length * side / max(height, width))) for length in (height, width)]
    maps = compute_class_maps(model, torch.as_tensor(view(photo, 0))[None], classes)[0]
    box = zip(visible_box(view, height, width), (*size[::-1], *size[::-1]), strict=True)
    left, top, right, bottom = (round(share * length) for share, length in box)
    heat = np.zeros((len(maps), *size), np.float32)
    inside = heat[:, top : max(bottom, top + 1), left : max(right, left + 1)]
    inside[:] = heat_map(maps, (inside.shape[1], inside.shape[2]))
    return heat


def heat_png(heat: Floats) -> bytes:
    """Return a heat map (H, W) in 0 … 1 as a one-colour PNG whose opacity follows the heat."""
    from PIL import Image

    # 16 steps in a palette take a third of the bytes of full colour.
    picture = Image.fromarray(np.rint(15 * heat).astype(np.uint8), mode="P")
    picture.putpalette(_COLOUR * 16)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True, transparency=bytes(round(_OPAQUE * step / 15) for step in range(16)))
    return stream.getvalue()
