"""A batch of images of different shapes: the plain view with `--resize keep`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor


class ImageList:
    """Images (C, H, W) of different shapes; moved, split and mirrored like the tensor (B, C, H, W) of a batch."""

    def __init__(self, images: Sequence[Tensor]) -> None:
        self.images = list(images)

    def __len__(self) -> int:
        return len(self.images)

    def to(self, *args: Any, **options: Any) -> ImageList:
        return ImageList([image.to(*args, **options) for image in self.images])

    def pin_memory(self) -> ImageList:
        return ImageList([image.pin_memory() for image in self.images])

    def flip(self, dim: int) -> ImageList:
        return ImageList([image.flip(dim) for image in self.images])

    def tensor_split(self, pieces: int) -> list[ImageList]:
        """Return the parts into which torch.tensor_split cuts a batch."""
        parts = torch.arange(len(self)).tensor_split(pieces)
        return [ImageList([self.images[number] for number in part.tolist()]) for part in parts]

    def apply(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a network (B, C, H, W) -> (B, D) to the images of each shape; the result is in the images' order."""
        numbers: dict[torch.Size, list[int]] = {}
        for number, image in enumerate(self.images):
            numbers.setdefault(image.shape, []).append(number)
        outputs = [network(torch.stack([self.images[number] for number in group])) for group in numbers.values()]
        order = torch.tensor([number for group in numbers.values() for number in group])
        return torch.cat(outputs)[order.argsort()]


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Stack images to (B, C, H, W); those of different shapes become an `ImageList`, which stands for that tensor."""
    if len({image.shape for image in images}) <= 1:
        return torch.stack(list(images))
    return cast(Tensor, ImageList(images))
