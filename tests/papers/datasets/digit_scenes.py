"""Digit scenes: a multi-label data set without download, composed of scikit-learn's handwritten digits.

Each scene shows one to five different digits of varied size, position, colour and contrast on an uneven background; its
labels say which of "0" … "9" it shows. Co-occurrence follows a small topic model: a scene has one of three themes z,
and its k classes are drawn without replacement with weights w[z], so that P(j | i) ranges from about 0.03 to 0.6. Every
number is a function of (seed, split, number of the scene): scene k is the same however many scenes are made.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.system.files import atomic_write
from halflabel.system.rng import hash_names, uniform

Split = Literal["train", "test"]
F32 = NDArray[np.float32]

CLASSES = [str(digit) for digit in range(10)]

_SPLITS = {"train": 0, "test": 1}
_TEST_SHARE = 0.3
_THEME = np.array([0.42, 0.33, 0.25])
_COUNT = np.array([0.18, 0.30, 0.28, 0.16, 0.08])
_WEIGHT = np.array(
    [
        [10.0, 8.0, 8.0, 5.0, 0.7, 0.5, 0.4, 0.8, 0.3, 0.2],
        [1.2, 0.4, 0.4, 3.0, 9.0, 9.0, 5.0, 0.9, 0.3, 0.1],
        [0.4, 2.5, 0.3, 0.3, 0.5, 0.9, 2.5, 9.0, 6.0, 2.2],
    ]
)
# In pixels of a 64-pixel scene: the more digits, the smaller the largest may be, so that all fit.
_SMALLEST = 14
_LARGEST = np.array([36, 34, 30, 26, 24])
_PLACES = 16
_MOST = len(_COUNT)
# Purposes of random numbers. Each has a separate sequence, so that changing one does not affect the others.
_FOR_LABELS, _FOR_DIGITS, _FOR_PLACES, _FOR_GROUND, _FOR_GRAIN = range(5)
# Separates the random numbers of scenes from those drawn elsewhere with the same seed.
_DIGITS = 0x64696769
_BLOCK = 512


class Scenes(NamedTuple):
    """images: uint8 (n, 3, S, S); labels: int8 (n, 10) of −1, +1; names: one per scene; classes: "0" … "9"."""

    images: torch.Tensor
    labels: NDArray[np.int8]
    names: list[str]
    classes: list[str]


def scenes(n: int, *, seed: int = 0, split: Split = "train", size: int = 64) -> Scenes:
    """Return the first `n` scenes of a split, fully labelled; the two splits share no handwritten digit."""
    images = np.empty((n, 3, size, size), np.uint8)
    labels = np.empty((n, 10), np.int8)
    for numbers in _blocks(n):
        images[numbers], labels[numbers] = _paint(numbers, seed, split, size)
    return Scenes(torch.from_numpy(images), labels, [_name(split, number) for number in range(n)], list(CLASSES))


def write_folder(folder: str | Path, n: int, *, seed: int = 0, split: Split = "train", size: int = 64) -> Path:
    """Write `n` scenes to `folder`/images/*.png and `folder`/<split>.csv (1 present, 0 absent); return the CSV path."""
    from PIL import Image

    image_folder = Path(folder) / "images"
    try:
        image_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create {image_folder}: {error.strerror}", "choose a folder you may write to") from None
    table = Path(folder) / f"{split}.csv"
    # The table is renamed into place last: if it exists, all its images do.
    with atomic_write(table) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image", *CLASSES])
        for numbers in _blocks(n):
            images, labels = _paint(numbers, seed, split, size)
            for number, image, row in zip(numbers, images, labels, strict=True):
                name = f"{_name(split, number)}.png"
                Image.fromarray(image.transpose(1, 2, 0)).save(image_folder / name, compress_level=1)
                writer.writerow([name, *(int(value > 0) for value in row)])
    return table


def _name(split: str, number: int) -> str:
    return f"{split}-{number:06d}"


def _blocks(n: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers 0 … n − 1 in blocks, so that memory does not grow with the number of scenes."""
    if n < 1:
        raise UserError(f"cannot make {n} scenes", "ask for 1 or more")
    return (np.arange(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK))


@cache
def _handwriting(split: str) -> tuple[F32, tuple[NDArray[np.int64], ...]]:
    """Return all digits as ink in 0..1, (1797, 8, 8), and for each class the numbers of its digits in the split.

    The split of a digit is a hash of its pixels, so that equal digits are in the same split.
    """
    from sklearn.datasets import load_digits

    if split not in _SPLITS:
        raise UserError(f"there is no split {split!r}", "use train or test")
    data = load_digits()
    hashes = hash_names([image.astype(np.uint8).tobytes().hex() for image in data.images])
    is_test = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53 < _TEST_SHARE
    in_split = is_test if split == "test" else ~is_test
    pools = tuple(np.flatnonzero(in_split & (data.target == digit)) for digit in range(10))
    return (data.images / 16).astype(np.float32), pools


def _paint(numbers: NDArray[np.int64], seed: int, split: str, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """Return scenes by number: images (m, 3, S, S) and labels (m, 10); no scene depends on the others."""
    if size < 32:
        raise UserError(f"digits cannot be read on {size} pixels", "make scenes of 32 pixels or more")
    ink, pools = _handwriting(split)

    def draw(purpose: int, *shape: int) -> NDArray[np.float64]:
        slots = np.arange(int(np.prod(shape)))[None, :]
        return uniform(seed, _DIGITS, _SPLITS[split], purpose, numbers[:, None], slots).reshape(len(numbers), *shape)

    ranks, count = _choose(draw(_FOR_LABELS, 12))
    labels = np.where(ranks < count[:, None], 1, -1).astype(np.int8)
    digits = ranks.argsort(axis=1)[:, :_MOST]

    u = draw(_FOR_DIGITS, _MOST, 8)
    pool_sizes = np.array([len(pool) for pool in pools])
    pick = (u[..., 0] * pool_sizes[digits]).astype(np.int64)
    starts = np.concatenate([[0], pool_sizes.cumsum()[:-1]])
    samples = np.concatenate(pools)[starts[digits] + pick]

    largest = _LARGEST[count - 1][:, None]
    sides = np.rint((_SMALLEST + u[..., 1] * (largest - _SMALLEST)) * size / 64).astype(np.int64)
    tops, lefts = _place(draw(_FOR_PLACES, _MOST, _PLACES, 2), sides, count, size)

    canvas = _ground(draw(_FOR_GROUND, 3 * (16 + 64) + 6), size)
    inks = _colours(canvas, tops + sides // 2, lefts + sides // 2, u)
    for slot in range(_MOST):
        for side in np.unique(sides[:, slot]):
            scenes_here = np.flatnonzero((sides[:, slot] == side) & (slot < count))
            if scenes_here.size:
                alpha = _stretch(ink[samples[scenes_here, slot]], int(side))
                alpha = np.clip((alpha - np.float32(0.2)) * np.float32(2), 0, 1)[:, None]
                box = (
                    scenes_here[:, None, None, None],
                    np.arange(3)[:, None, None],
                    (tops[scenes_here, slot, None] + np.arange(side))[:, None, :, None],
                    (lefts[scenes_here, slot, None] + np.arange(side))[:, None, None, :],
                )
                under = canvas[box]
                canvas[box] = under + alpha * (inks[scenes_here, slot][:, :, None, None] - under)
    canvas += ((draw(_FOR_GRAIN, size, size) - 0.5) * 0.08).astype(np.float32)[:, None]
    return np.rint(np.clip(canvas, 0, 1) * 255).astype(np.uint8), labels


def _choose(u: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random numbers (m, 12) -> the rank of each class, (m, 10), and how many are shown, (m,), 1 to 5.

    Sorting log w + Gumbel noise draws without replacement in proportion to w.
    """
    theme = np.searchsorted(_THEME.cumsum()[:-1], u[:, 0], side="right")
    count = 1 + np.searchsorted(_COUNT.cumsum()[:-1], u[:, 1], side="right")
    keys = np.log(_WEIGHT[theme]) - np.log(-np.log(np.maximum(u[:, 2:], 1e-12)))
    return (-keys).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable"), count


def _place(
    u: NDArray[np.float64], sides: NDArray[np.int64], count: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose for each digit the random position that overlaps least with earlier digits: tops and lefts, (m, 5)."""
    corners = (u * (size - sides + 1)[:, :, None, None]).astype(np.int64)
    chosen = np.zeros((*sides.shape, 2), np.int64)
    scene = np.arange(len(sides))
    for slot in range(_MOST):
        low = corners[:, slot]
        overlap = np.zeros(low.shape[:2], np.int64)
        for before in range(slot):
            start = np.maximum(low, chosen[:, before, None])
            end = np.minimum(low + sides[:, slot, None, None], (chosen + sides[..., None])[:, before, None])
            overlap += np.clip(end - start, 0, None).prod(axis=2) * (before < count)[:, None]
        chosen[:, slot] = low[scene, overlap.argmin(axis=1)]
    return chosen[..., 0], chosen[..., 1]


def _ground(u: NDArray[np.float64], size: int) -> F32:
    """Random numbers (m, 246) -> background (m, 3, S, S): base colour, gradient, and smooth blotches of two sizes."""
    v = u.astype(np.float32)
    coarse = _stretch(v[:, :48].reshape(-1, 3, 4, 4), size) - np.float32(0.5)
    fine = _stretch(v[:, 48:240].reshape(-1, 3, 8, 8), size) - np.float32(0.5)
    brightness, tint = v[:, 240], v[:, 241:244]
    base = 0.25 + 0.5 * brightness[:, None] + 0.2 * (tint - np.float32(0.5))
    ramp = np.linspace(-0.5, 0.5, size, dtype=np.float32)
    down, across = ((v[:, slot, None] - np.float32(0.5)) * ramp for slot in (244, 245))
    slope = np.float32(0.4) * (down[:, :, None] + across[:, None, :])
    ground: F32 = base[:, :, None, None] + slope[:, None] + np.float32(0.25) * coarse + np.float32(0.15) * fine
    return np.clip(ground, 0, 1)


def _colours(ground: F32, y: NDArray[np.int64], x: NDArray[np.int64], u: NDArray[np.float64]) -> F32:
    """Return the colour of each digit, (m, 5, 3): the background at its centre, brighter or darker, and tinted.

    The darker the background, the likelier is a brighter digit, so that the contrast fits into the range.
    """
    under = ground[np.arange(len(ground))[:, None], :, y, x]
    light = under.mean(axis=2)
    sign = np.where(u[..., 2] < np.clip((0.75 - light) / 0.5, 0, 1), 1, -1)
    step = sign * (0.22 + 0.33 * u[..., 3])
    return np.clip(under + step[..., None] + 0.3 * (u[..., 4:7] - 0.5), 0, 1).astype(np.float32)


def _stretch(grid: F32, size: int) -> F32:
    """(..., g, g) -> (..., S, S), bilinear between the centres of the cells."""
    g = grid.shape[-1]
    position = np.clip((np.arange(size) + 0.5) * g / size - 0.5, 0, g - 1)
    low = np.minimum(position.astype(np.int64), g - 2)
    part = (position - low).astype(np.float32)
    rows = grid[..., low, :] + part[:, None] * (grid[..., low + 1, :] - grid[..., low, :])
    out: F32 = rows[..., low] + part * (rows[..., low + 1] - rows[..., low])
    return out
