"""Images, a counting backbone and expected values for the tests of the feature cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from halflabel.features.backbones import Backbone, build_backbone
from halflabel.images.sources import Arrays, Features, Images
from halflabel.images.views import Plain
from halflabel.labels.names import Names

N = 7


class Counting:
    """Counts the images that a backbone computes; stops it at a limit."""

    def __init__(self, backbone: Backbone, limit: int = 10**9) -> None:
        self.images = 0
        self.limit = limit
        self.raw = backbone._raw
        backbone._raw = self  # type: ignore[method-assign,assignment]

    def __call__(self, images: Tensor) -> Any:
        if self.images >= self.limit:
            raise KeyboardInterrupt
        self.images += len(images)
        return self.raw(images)


def tiny() -> tuple[Backbone, Counting]:
    backbone = build_backbone("tiny", size=32)
    return backbone, Counting(backbone)


def pictures(seed: int = 0, n: int = N) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, 3, 40, 40), dtype=np.uint8))


def arrays(seed: int = 0, size: int = 32) -> Arrays:
    return Arrays(pictures(seed), Names.numbered(N), {"plain": Plain(size)})


def images(folder: Path, bad: tuple[int, ...] = (), max_bad: float = 1.0) -> Images:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(N)]
    for number, (path, picture) in enumerate(zip(paths, pictures(), strict=True)):
        if not path.exists():
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
            if number in bad:
                path.write_bytes(path.read_bytes()[:100])
    return Images(paths, Names.numbered(N), {"plain": Plain(32)}, max_bad=max_bad)


def values(features: Features) -> np.ndarray[Any, Any]:
    return np.array(features.values)


def by_hand(maps: bool = False, n: int = N) -> np.ndarray[Any, Any]:
    backbone = build_backbone("tiny", size=32)
    with torch.inference_mode():
        features = backbone(torch.stack([Plain(32)(picture) for picture in pictures(n=n)]))
    return (features if maps else features.mean((2, 3))).half().numpy()


def change_weights(backbone: Backbone) -> None:
    with torch.no_grad():
        first = next(backbone.parameters())  # not scaled: the norm that follows would undo it
        first.copy_(first.flip(0))


def flip_a_bit(place: Path) -> None:
    raw = bytearray((place / "values.npy").read_bytes())
    raw[-1] ^= 4
    (place / "values.npy").write_bytes(bytes(raw))
