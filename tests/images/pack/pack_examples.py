"""Photos and packs for the tests of packs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from halflabel.images.pack.read import (
    Pack,
    PackSettings,
    open_pack,
)
from halflabel.images.pack.write import pack_images
from halflabel.images.views import Plain, Strong, View, Weak

VIEWS: dict[str, View] = {"plain": Plain(16), "weak": Weak(16), "strong": Strong(16)}


N = 12


PNG = PackSettings(size=24, store="png")


def pixels(number: int, high: int = 20, wide: int = 28) -> np.ndarray:
    """Smooth, so that a JPEG of it is close to it."""
    noise = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize((wide, high), Image.Resampling.BICUBIC))


def write_photos(folder: Path, n: int = N, kind: str = "png", high: int = 20, wide: int = 28) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(n):
        Image.fromarray(pixels(number, high, wide)).save(folder / f"{number:02d}.{kind}")
    return folder


def packed_up(folder: Path, stored: PackSettings = PNG, **more: Any) -> Pack:
    out = folder.with_name(f"{folder.name}.pack")
    pack_images(folder, out, stored, **more)
    return open_pack(out)
