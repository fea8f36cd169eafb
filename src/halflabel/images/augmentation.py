"""Crops, RandAugment's operations and cutout, of a batch of images at once, on any device, by given random numbers."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

#: RandAugment's operations, in the order of torchvision's v2.RandAugment.
RANDAUGMENT_OPS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),  # by a factor
    *("Posterize", "Solarize", "AutoContrast", "Equalize"),
)
_MAGNITUDES = 30  # the highest magnitude
_GREY = 128.0

Floats = NDArray[np.float64]


def augmented(
    images: Tensor, picks: Floats, magnitude: int, square: tuple[Floats, NDArray[np.int64]], crop: Floats | None = None
) -> Tensor:
    """Apply random operations and one grey square: uint8 (B, 3, S, S) -> the same shape.

    All geometry, with the `crop` (B, 3, 3) if there is one, is one bilinear resampling, black outside; colours follow.
    picks: (B, K, 2) numbers in [0, 1) that choose each operation and its sign. square: side (B, 1) and centre (B, 2).
    """
    level = magnitude / _MAGNITUDES
    operation = (picks[..., 0] * len(RANDAUGMENT_OPS)).astype(np.int64)
    sign = np.where(picks[..., 1] < 0.5, -1.0, 1.0)

    def drawn(name: str) -> NDArray[np.bool_]:
        return np.asarray(operation == RANDAUGMENT_OPS.index(name))

    change = 1 + 0.9 * level * sign
    factors = {name: np.where(drawn(name), change, 1.0).prod(1) for name in RANDAUGMENT_OPS[6:10]}
    switches = {name: drawn(name).any(1) for name in RANDAUGMENT_OPS[10:]}
    side, centre = square
    corner = centre - side // 2
    moves = _moves(*((drawn(name) * sign).sum(1) * level for name in RANDAUGMENT_OPS[1:6]))
    # Sent to the device in one piece.
    columns = np.column_stack([*factors.values(), *switches.values(), corner, corner + side]).astype(np.float32)
    sent = torch.from_numpy(columns).to(images.device, non_blocking=True)
    number = {name: sent[:, place].view(-1, 1, 1, 1) for place, name in enumerate((*factors, *switches))}

    x = resampled(images, moves if crop is None else crop @ moves).float()
    # An operation that no image of the batch has is skipped; it would leave all of them unchanged.
    for name, change_by in zip(factors, (_brightness, _saturation, _contrast, _sharpness), strict=True):
        if (factors[name] != 1).any():
            x = change_by(x, number[name])
    for name, change_of in zip(switches, (_posterized, _solarized, _autocontrast, _equalized), strict=True):
        if (rows := np.flatnonzero(switches[name])).size:
            at = torch.from_numpy(rows).to(x.device, non_blocking=True)
            x = x.index_copy(0, at, change_of(x[at], level))
    top, left, bottom, right = sent[:, -4:, None].unbind(1)
    cells = torch.arange(images.shape[-1], device=x.device)
    rows_in, columns_in = (cells >= top) & (cells < bottom), (cells >= left) & (cells < right)
    x = torch.where(rows_in[:, None, :, None] & columns_in[:, None, None, :], _GREY, x)
    return _round(x).to(torch.uint8)


def crop_maps(least: float, flip: float, u: Floats, stretch: Floats | float = 1.0) -> Floats:
    """Return random crops and flips (B, 3, 3), as maps from a point of the result to the image, both in −1 … 1.

    u: (B, 4 or more) random numbers: share of the area in [least, 1], position, flip with the given probability.
    Crops are wider by the factor `stretch` (B,), and lower by it, as far as the image allows.
    """
    share = np.sqrt(least + (1 - least) * u[:, 0])
    wide, high = np.minimum(share * stretch, 1), np.minimum(share / stretch, 1)
    down, right = (1 - high) * (2 * u[:, 1] - 1), (1 - wide) * (2 * u[:, 2] - 1)
    mirror = np.where(u[:, 3] < flip, -1.0, 1.0)
    return _affine(mirror * wide, 0 * wide, right, 0 * wide, high, down)


def recoloured(images: Tensor, factors: Floats) -> Tensor:
    """Change brightness, saturation and contrast by factors (B, 3): uint8 (B, 3, S, S) -> the same shape."""
    sent = torch.from_numpy(factors.astype(np.float32)).to(images.device, non_blocking=True)
    x = images.float()
    for change, factor in zip((_brightness, _saturation, _contrast), sent.unbind(1), strict=True):
        x = change(x, factor.view(-1, 1, 1, 1))
    return x.round().to(torch.uint8)


def resampled(images: Tensor, maps: Floats) -> Tensor:
    """Resample bilinearly, black outside: uint8 (B, 3, S, S) and affine maps (B, 3, 3) -> uint8 (B, 3, S, S)."""
    if (maps == np.eye(3)).all():
        return images
    sent = torch.from_numpy(maps[:, :2].astype(np.float32)).to(images.device, non_blocking=True)
    places = _places(images.shape[-1], images.device).expand(len(images), -1, -1)
    grid = places.bmm(sent.transpose(1, 2)).view(len(images), *images.shape[-2:], 2)
    x = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return x.round().to(torch.uint8)


def _moves(shear_x: Floats, shear_y: Floats, right: Floats, down: Floats, turn: Floats) -> Floats:
    """Return RandAugment's shears, shifts and rotations (B, 3, 3) at signed levels (B,), with its ranges."""
    one, zero = np.ones_like(turn), np.zeros_like(turn)
    shift = 2 * 150 / 331
    angle = np.radians(30 * turn)
    # Sheared about the upper left corner: the shift keeps that corner in place.
    moves = _affine(one, 0.3 * shear_x, 0.3 * shear_x, zero, one, zero)
    moves = moves @ _affine(one, zero, zero, 0.3 * shear_y, one, 0.3 * shear_y)
    moves = moves @ _affine(one, zero, -shift * right, zero, one, -shift * down)
    return moves @ _affine(np.cos(angle), -np.sin(angle), zero, np.sin(angle), np.cos(angle), zero)


def _affine(*parts: Floats) -> Floats:
    """(B, 3, 3) matrices [[a, b, c], [d, e, f], [0, 0, 1]] from six (B,) columns."""
    zero, one = np.zeros_like(parts[0]), np.ones_like(parts[0])
    return np.stack([*parts, zero, zero, one], -1).reshape(-1, 3, 3)


@cache
def _places(size: int, device: torch.device) -> Tensor:
    """Return the centres of size² pixels as (x, y, 1) in −1 … 1; F.affine_grid would recompute them each time."""
    steps = (torch.arange(size, device=device) * 2 + 1) / size - 1
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y, torch.ones_like(x)], -1).view(1, -1, 3)


def _round(x: Tensor) -> Tensor:
    return x.clamp(0, 255).round()


def _grey(x: Tensor) -> Tensor:
    return (0.2989 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]).floor()


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp(0, 255)


def _saturation(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor + _grey(x) * (1 - factor)).clamp(0, 255)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    # Whole numbers as float64 have an exact sum: it does not depend on the number of threads.
    mean = _grey(x).mean((1, 2, 3), dtype=torch.float64, keepdim=True).float()
    return (x * factor + mean * (1 - factor)).clamp(0, 255)


def _sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the 3 × 3 blur (ones, 5 in the centre, / 13); the border stays unchanged."""
    if x.shape[-1] < 3:
        return x
    inner = x[..., 1:-1, 1:-1]
    blurred = ((9 * F.avg_pool2d(x, 3, 1) + 4 * inner) / 13).round()
    out = x.clone()
    out[..., 1:-1, 1:-1] = (inner * factor + blurred * (1 - factor)).clamp(0, 255)
    return out


def _posterized(x: Tensor, level: float) -> Tensor:
    step = 2.0 ** (8 - round(8 - 4 * level))
    return torch.floor(_round(x) / step) * step


def _solarized(x: Tensor, level: float) -> Tensor:
    return torch.where(x >= 255 * (1 - level), 255 - x, x)


def _autocontrast(x: Tensor, level: float) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    stretched = ((x - low) * (255 / (high - low).clamp(min=1e-6))).clamp(0, 255)
    return torch.where(high <= low, x, stretched)


def _equalized(x: Tensor, level: float) -> Tensor:
    """Equalise the histogram of each channel, as torchvision's equalize does, for the whole batch."""
    levels = _round(x).long().flatten(2)
    counts = torch.zeros((*levels.shape[:2], 256), dtype=torch.int64, device=x.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    last = 255 - (counts.flip(-1) > 0).int().argmax(-1, keepdim=True)  # the brightest value that occurs
    step = (levels.shape[2] - counts.gather(2, last)) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(0, 255)
    table = torch.where(step == 0, torch.arange(256, device=x.device), table)
    return table.gather(2, levels).view_as(x).to(x.dtype)
