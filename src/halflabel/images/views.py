"""Views of an image: decoded uint8 (3, H, W) in, uint8 (3, S, S) out; the model normalises them.

All randomness of a view is a function of its integer key: the same key gives the same bytes in any worker or thread.
With `keep`, the plain view is not a square: it has about the aspect ratio of the image and about S² pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from halflabel.images import augmentation
from halflabel.system.rng import bits, uniform

Resize = Literal["squash", "crop", "keep"]
Interpolation = Literal["bilinear", "bicubic"]

MOST_PIXELS = 4096  # of a side of the images that a file asks for
# Separates the random numbers of views from those drawn elsewhere with the same seed.
_PURPOSE = 0x76696577
# Aspect ratios (width / height) of the plain view with `keep`. They are few, as each shape has its own network in ONNX
# Runtime; √2 is within 6 % of 4:3 and 3:2, the ratios of most photos.
_RATIOS = (9 / 16, 0.5**0.5, 1.0, 2**0.5, 16 / 9)
_STEP = 16  # sides with `keep` are multiples of it


def view_keys(seed: int, epoch: int, hashes: NDArray[np.uint64], views: int) -> NDArray[np.uint64]:
    """Return the keys (B, V) of V views of B images in one epoch; `hashes` (B,) come from rng.hash_names."""
    return bits(seed, _PURPOSE, epoch, hashes[:, None], np.arange(views)[None, :])


@dataclass(frozen=True)
class View:
    """Turns a decoded image, uint8 (channels, H, W), into the input of the model: new contiguous uint8 (…, S, S)."""

    version = 1  # raised whenever the pixels change, so that older caches are not used

    size: int  # S, the side of the output square, or of one with as many pixels
    resize: Resize = "squash"
    interpolation: Interpolation = "bilinear"
    channels: int = field(default=3, kw_only=True)

    def __call__(self, image: Tensor, key: int) -> Tensor:
        raise NotImplementedError

    def describe(self) -> str:
        """Return a line that is equal for equal views only: the key of caches."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.channels == 3:  # of nearly all views
            del values["channels"]
        parts = [f"{name}={value}" for name, value in values.items()]
        return f"{type(self).__name__}({','.join(parts)},version={self.version})"


@dataclass(frozen=True)
class Plain(View):
    """No randomness: `squash` resizes to S × S whatever the aspect ratio; `crop` takes the centre square.

    The centre square has the side crop_pct · min(H, W). That equals resizing the short side to S / crop_pct and
    cropping the centre, in one step whose cost does not grow with the aspect ratio. `keep` resizes to `kept_shape`.

    >>> Plain(224).describe()
    'Plain(size=224,resize=squash,interpolation=bilinear,crop_pct=0.875,version=1)'
    """

    crop_pct: float = 0.875

    def __call__(self, image: Tensor, key: int = 0) -> Tensor:
        height, width = image.shape[-2:]
        if self.resize == "crop":
            side = _side(self.crop_pct * min(height, width), min(height, width))
            top, left = (height - side) // 2, (width - side) // 2
            return _resized(image, top, left, side, side, (self.size,) * 2, self.interpolation)
        shape = kept_shape(height, width, self.size) if self.resize == "keep" else (self.size,) * 2
        return _resized(image, 0, 0, height, width, shape, self.interpolation)


@dataclass(frozen=True)
class Weak(View):
    """A random crop resized to S × S, mirrored with probability `flip`.

    The share of the area that the crop covers is uniform in [least, 1]. With `squash` the crop keeps the image's aspect
    ratio, so that the result is stretched as by Plain; with `crop` it is a square, of that share of the largest one.
    """

    least: float = 0.8
    flip: float = 0.5

    def __call__(self, image: Tensor, key: int) -> Tensor:
        return self._weak(image, draw_uniform(np.array([key], np.uint64), 4)[0])

    def batch(self, images: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """Make the view of plain views (B, 3, S, S) on their device: crop and flip are one bilinear resampling."""
        return augmentation.resampled(images, augmentation.crop_maps(self.least, self.flip, draw_uniform(keys, 4)))

    def _weak(self, image: Tensor, u: NDArray[np.float64]) -> Tensor:
        height, width = image.shape[-2:]
        share = math.sqrt(self.least + (1 - self.least) * u[0])
        high, wide = (height, width) if self.resize == "squash" else (min(height, width),) * 2
        high, wide = _side(share * high, high), _side(share * wide, wide)
        top, left = int(u[1] * (height - high + 1)), int(u[2] * (width - wide + 1))
        image = _resized(image, top, left, high, wide, (self.size,) * 2, self.interpolation)
        return image.flip(-1) if u[3] < self.flip else image


@dataclass(frozen=True)
class Varied(Weak):
    """A weak view with more variety, for tuning a whole network: crops of other aspect ratios, then other colours.

    Crops are up to e^`stretch` wider or narrower. Brightness, saturation and contrast change by up to ± `colour`;
    images of other bands than RGB keep their colours.
    """

    least: float = 0.4
    stretch: float = 0.14
    colour: float = 0.3

    def __call__(self, image: Tensor, key: int) -> Tensor:
        plain = Plain(self.size, self.resize, self.interpolation, channels=self.channels)
        return self.batch(plain(image)[None], np.array([key], np.uint64))[0]

    def batch(self, images: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        u = draw_uniform(keys, 8)
        crops = augmentation.crop_maps(self.least, self.flip, u, np.exp(self.stretch * (2 * u[:, 4] - 1)))
        made = augmentation.resampled(images, crops)
        is_rgb = self.channels == 3 and self.colour > 0
        return augmentation.recoloured(made, 1 + self.colour * (2 * u[:, 5:] - 1)) if is_rgb else made


@dataclass(frozen=True)
class Strong(Weak):
    """The weak view, then RandAugment (`num_ops` operations at a magnitude of 0..30), then one grey square (cutout).

    Operations, magnitudes and signs are those of torchvision's v2.RandAugment, in a fixed order: see
    `augmentation.augmented`. The side of the square is uniform in [0, cutout · S]; its centre may be anywhere.
    RandAugment: Cubuk et al., 2020. Cutout: DeVries and Taylor, 2017.
    """

    version = 2

    num_ops: int = 2
    magnitude: int = 9
    cutout: float = 0.5

    def __call__(self, image: Tensor, key: int) -> Tensor:
        u = self._draws(np.array([key], np.uint64))
        return self._augmented(self._weak(image, u[0])[None], u, None)[0]

    def batch(self, images: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        u = self._draws(keys)
        return self._augmented(images, u, augmentation.crop_maps(self.least, self.flip, u))

    def _draws(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        return draw_uniform(keys, 7 + 2 * self.num_ops)

    def _augmented(self, images: Tensor, u: NDArray[np.float64], crop: NDArray[np.float64] | None) -> Tensor:
        picks = u[:, 7:].reshape(len(u), self.num_ops, 2)
        square = np.round(u[:, 4:5] * self.cutout * self.size), (u[:, 5:7] * self.size).astype(np.int64)
        return augmentation.augmented(images, picks, self.magnitude, square, crop)


def make_views(
    size: int,
    resize: Resize = "squash",
    interpolation: Interpolation = "bilinear",
    crop_pct: float = 0.875,
    *,
    crop: float = 0.8,
    channels: int = 3,
    **strong: Any,
) -> dict[str, View]:
    """Return the views "plain", "weak" and "strong" of size × size pixels; "strong" only of RGB images.

    With `keep` there is "square" too, the squashed plain view; "weak" and "strong" are squashed then. crop: the
    smallest share of the image that a random crop covers. strong: further fields of `Strong`.
    """
    augmented: Resize = "squash" if resize == "keep" else resize
    views: dict[str, View] = {
        "plain": Plain(size, resize, interpolation, crop_pct, channels=channels),
        "weak": Weak(size, augmented, interpolation, least=crop, channels=channels),
    }
    if resize == "keep":
        views["square"] = Plain(size, "squash", interpolation, crop_pct, channels=channels)
    if channels == 3:
        views["strong"] = Strong(size, augmented, interpolation, least=crop, **strong)
    return views


def draw_uniform(keys: NDArray[np.uint64], number: int) -> NDArray[np.float64]:
    """Return the random numbers of views: keys (B,) -> (B, number) in [0, 1)."""
    return uniform(keys[:, None], _PURPOSE, np.arange(number)[None, :])


def kept_shape(height: int, width: int, size: int) -> tuple[int, int]:
    """Return the height and width that an image gets with `keep`: of `kept_shapes`, the nearest to its aspect ratio.

    >>> kept_shape(480, 640, 224), kept_shape(3000, 2000, 224), kept_shape(100, 900, 224)
    ((192, 272), (272, 192), (160, 304))
    """
    shapes = dict(zip(_RATIOS, kept_shapes(size), strict=True))
    return shapes[min(_RATIOS, key=lambda ratio: abs(math.log(width / height / ratio)))]


def kept_shapes(size: int) -> list[tuple[int, int]]:
    """Return the heights and widths of views with `keep`: about size² pixels each, from upright to wide."""
    sides = [(size * ratio**-0.5, size * ratio**0.5) for ratio in _RATIOS]
    rounded = [(max(1, round(high / _STEP)) * _STEP, max(1, round(wide / _STEP)) * _STEP) for high, wide in sides]
    return [(size, size) if ratio == 1 else shape for ratio, shape in zip(_RATIOS, rounded, strict=True)]


def _side(length: float, most: int) -> int:
    return min(max(round(length), 1), most)


def _resized(
    image: Tensor, top: int, left: int, height: int, width: int, shape: tuple[int, int], interpolation: str
) -> Tensor:
    """Return a box of the image, resized to (H, W) with antialiasing as torchvision does it."""
    if image.dtype != torch.uint8 or image.ndim != 3:
        raise ValueError(f"a view takes uint8 (C, H, W), not {image.dtype} {tuple(image.shape)}")
    # Resizing bytes is vectorised for channels last only; a crop must be dense to count as channels last.
    box = image.permute(1, 2, 0)[top : top + height, left : left + width].contiguous().permute(2, 0, 1)
    if (height, width) != shape:
        # These strides say unambiguously that a batch of one image is channels last, and so is the output.
        batch = box.as_strided((1, *box.shape), (box.numel(), *box.stride()))
        box = F.interpolate(batch, shape, mode=interpolation, align_corners=False, antialias=True)[0]
    return box.clone(memory_format=torch.contiguous_format)


class ImageList:
    """Images (C, H, W) of different shapes; moved and split like the tensor (B, C, H, W) of a batch."""

    def __init__(self, images: Sequence[Tensor]) -> None:
        self.images = list(images)

    def __len__(self) -> int:
        return len(self.images)

    def to(self, *args: Any, **options: Any) -> ImageList:
        return ImageList([image.to(*args, **options) for image in self.images])

    def pin_memory(self) -> ImageList:
        return ImageList([image.pin_memory() for image in self.images])

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
