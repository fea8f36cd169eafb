"""Photos and packs for the tests of packs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from halflabel.images.pack.read import (
    Pack,
    PackSettings,
    open_pack,
)
from halflabel.images.pack.write import pack_images
from halflabel.images.views import Plain, Strong, View, Weak

VIEWS: dict[str, View] = {"plain": Plain(16), "weak": Weak(16), "strong": Strong(16)}


N = 12


#: The photos of `write_photos` are small enough to be stored unchanged.
UNCHANGED = PackSettings(size=24)


def encoded(number: int, high: int = 20, wide: int = 28) -> bytes:
    """A JPEG, smooth, so that one made of it is close to it."""
    noise = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).resize((wide, high), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def pixels(number: int, high: int = 20, wide: int = 28) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encoded(number, high, wide))))


def write_photos(folder: Path, n: int = N, high: int = 20, wide: int = 28) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(n):
        (folder / f"{number:02d}.jpg").write_bytes(encoded(number, high, wide))
    return folder


def pixels_of(pack: Pack, number: int) -> np.ndarray:
    """The pixels of the photo that a pack stores under a number: its own order is random."""
    return pixels(int(Path(pack.name(number)).stem))


def image_of(pack: Pack, number: int, **more: int) -> Tensor:
    return pack.decode(number, pack.read(number), **more)


def packed_up(folder: Path, stored: PackSettings = UNCHANGED, **more: Any) -> Pack:
    out = folder.with_name(f"{folder.name}.pack")
    pack_images(folder, out, stored, **more)
    return open_pack(out)
