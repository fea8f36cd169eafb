"""Where a model sees a class: class-activation maps laid over the photos, and two heads side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.report.training import save_figure

if TYPE_CHECKING:
    from torch import Tensor

    from halflabel.heads import Model

__all__ = ["activations", "compare_activations", "draw_activations", "heat", "overlay"]

Scale = Literal["picture", "shared"]
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

    from halflabel.heads import Head

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


def heat(maps: NDArray[Any], size: tuple[int, int], largest: float | None = None) -> Floats:
    """How hot each pixel is, from 0 to 1: (..., h, w) class maps -> (..., H, W).

        M_c = ReLU(A_c) / max ReLU(A_c)    (Wang 2023, eq. 1), enlarged bilinearly

    The maximum is each map's own, or `largest` for all of them, so that they can be compared. A map that is nowhere
    positive is cold all over: nothing there speaks for the class.
    """
    import torch
    from torch.nn.functional import interpolate

    positive = np.maximum(np.asarray(maps, dtype=np.float32), 0)
    most = positive.max(axis=(-2, -1), keepdims=True) if largest is None else np.float32(largest)
    scaled = positive / np.where(most > 0, most, 1)
    flat = torch.from_numpy(scaled.reshape(-1, 1, *scaled.shape[-2:]))
    enlarged: Floats = interpolate(flat, size=size, mode="bilinear", align_corners=False).numpy()
    return enlarged.reshape(*scaled.shape[:-2], *size).clip(0, 1)


def overlay(images: Tensor, maps: NDArray[Any], scale: Scale = "picture") -> Pixels:
    """Photos with their heat on top: (B, 3, H, W) uint8 and (B, K, h, w) class maps -> (B, K, H, W, 3) uint8.

    The hotter a place, the more of the colour; where nothing is hot, the photo is as it was. Scale "picture": each map
    has a hottest place; "shared": the hottest of all maps sets the scale.
    """
    photos = images.permute(0, 2, 3, 1).cpu().numpy()
    return _blend(photos[:, None], heat(maps, (images.shape[2], images.shape[3]), _largest([maps], scale)))


def compare_activations(
    models: Mapping[str, Model],
    images: Tensor,
    classes: Sequence[int],
    names: Sequence[str],
    scale: Scale = "picture",
) -> Any:
    """A figure with one row per photo: the photo, then what each model sees of one class, such as before and after SR.

    `images` (B, 3, H, W) uint8; `classes` (B,) the class to show of each photo (give a photo twice to show two);
    `names` of all classes. With "shared" one scale holds for all photos and models, so that one sees which is fainter.
    """
    from matplotlib.figure import Figure

    if not models or not len(images):
        raise UserError("there is nothing to compare", "give at least one model and one photo")
    if len(classes) != len(images):
        raise UserError(f"{len(images)} photos but {len(classes)} classes", "name one class for each photo")
    kinds, which = np.unique(np.asarray(classes), return_inverse=True)
    own = {
        name: activations(model, images, kinds.tolist())[np.arange(len(images)), which]
        for name, model in models.items()
    }
    size = (images.shape[2], images.shape[3])
    largest = _largest(list(own.values()), scale)
    hot = {name: heat(maps, size, largest) for name, maps in own.items()}
    photos = images.permute(0, 2, 3, 1).cpu().numpy()
    high, wide = size
    figure = Figure(figsize=(2.3 * (1 + len(models)), 0.4 + 2.3 * high / wide * len(images)), layout="constrained")
    panels = figure.subplots(len(images), 1 + len(models), squeeze=False)
    for row, photo in enumerate(photos):
        shown = [photo, *(_blend(photo, one[row]) for one in hot.values())]
        for axes, picture in zip(panels[row], shown, strict=True):
            axes.imshow(picture)
            axes.set_xticks([])
            axes.set_yticks([])
        panels[row][0].set_ylabel(names[classes[row]])
    for axes, title in zip(panels[0], ["photo", *hot], strict=True):
        axes.set_title(title, fontsize="medium")
    return figure


def draw_activations(
    models: Mapping[str, Model],
    images: Tensor,
    classes: Sequence[int],
    names: Sequence[str],
    path: Path,
    scale: Scale = "picture",
) -> None:
    """`compare_activations`, written as PNG."""
    save_figure(compare_activations(models, images, classes, names, scale), path)


def _largest(maps: Sequence[NDArray[Any]], scale: Scale) -> float | None:
    """What `heat` is to divide by; maps of different heads may differ in size."""
    if scale not in ("picture", "shared"):
        raise UserError(f"no scale is called {scale!r}", "use picture or shared")
    return max(float(one.max(initial=0)) for one in maps) if scale == "shared" else None


def _blend(photos: Pixels, hot: Floats) -> Pixels:
    """(..., H, W, 3) photos and (..., H, W) heat, broadcast."""
    from matplotlib import colormaps

    weight = _STRENGTH * np.sqrt(hot)[..., None]  # the root: what is lukewarm shows too
    colours = colormaps[_COLOURS](hot)[..., :3] * 255
    mixed: Pixels = np.rint((1 - weight) * photos + weight * colours).astype(np.uint8)
    return mixed
