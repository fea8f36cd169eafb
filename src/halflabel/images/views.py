"""Views of an image: decoded uint8 (3, H, W) in, uint8 (3, S, S) out; the model normalises them.

With `keep`, the plain view is not a square: it has about the aspect ratio of the image and about S² pixels.

All randomness of a view is a function of its integer key: the same key gives the same bytes in any worker or thread,
before and after a restart. No random generator is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from halflabel.errors import UserError
from halflabel.system.rng import bits, uniform

Resize = Literal["squash", "crop", "keep"]
Interpolation = Literal["bilinear", "bicubic"]

_INTERPOLATIONS = ("bilinear", "bicubic")
# Part of every description: raised whenever the pixels of a view change, so that older caches are not used.
_VERSION = 1
_BINS = 31
# Separates the random numbers of views from those drawn elsewhere with the same seed.
_PURPOSE = 0x76696577
_GREY = 128
# Aspect ratios (width / height) of the plain view with `keep`. They are few, as each shape has its own network in ONNX
# Runtime; √2 is within 6 % of 4:3 and 3:2, the ratios of most photos.
_RATIOS = (9 / 16, 0.5**0.5, 1.0, 2**0.5, 16 / 9)
_STEP = 16  # sides with `keep` are multiples of it


def view_keys(seed: int, epoch: int, hashes: NDArray[np.uint64], views: int) -> NDArray[np.uint64]:
    """Return the keys (B, V) of V views of B images in one epoch; `hashes` (B,) come from rng.hash_names.

    >>> keys = view_keys(0, 3, np.array([77, 78], np.uint64), 2)
    >>> keys.shape, len(set(keys.flat))
    ((2, 2), 4)
    """
    return bits(seed, _PURPOSE, epoch, hashes[:, None], np.arange(views)[None, :])


class View(Protocol):
    """Turns a decoded image into the input of the model."""

    @property
    def size(self) -> int:
        """S, the side of the output square, or of one with as many pixels."""
        ...

    def __call__(self, image: torch.Tensor, key: int) -> torch.Tensor:
        """uint8 (3, H, W) -> new contiguous uint8 (3, S, S); `image` is not changed."""
        ...

    def describe(self) -> str:
        """Return a line that is equal for equal views only: the key of caches."""
        ...


@dataclass(frozen=True)
class Plain:
    """No randomness: `squash` resizes to S × S whatever the aspect ratio; `crop` takes the centre square.

    The centre square has the side crop_pct · min(H, W). That equals resizing the short side to S / crop_pct and
    cropping the centre, in one step whose cost does not grow with the aspect ratio. `keep` resizes to `kept_shape`. The
    key is not used.

    >>> Plain(224).describe()
    'Plain(size=224,resize=squash,interpolation=bilinear,crop_pct=0.875,version=1)'
    """

    size: int
    resize: Resize = "squash"
    interpolation: Interpolation = "bilinear"
    crop_pct: float = 0.875
    channels: int = 3

    def __call__(self, image: torch.Tensor, key: int = 0) -> torch.Tensor:
        height, width = image.shape[-2:]
        if self.resize == "keep":
            return _resized(image, 0, 0, height, width, kept_shape(height, width, self.size), self.interpolation)
        if _squash(self.resize):
            return _resized(image, 0, 0, height, width, (self.size,) * 2, self.interpolation)
        side = _side(self.crop_pct * min(height, width), min(height, width))
        return _resized(
            image, (height - side) // 2, (width - side) // 2, side, side, (self.size,) * 2, self.interpolation
        )

    def describe(self) -> str:
        return _describe(self)


@dataclass(frozen=True)
class Weak:
    """A random crop resized to S × S, mirrored with probability `flip`.

    The share of the area that the crop covers is uniform in [least, 1]. With `squash` the crop keeps the image's aspect
    ratio, so that the result is stretched as by Plain; with `crop` it is a square, of that share of the largest one.
    A resized crop needs no padding, is one step, and varies the size of objects as well as their position.
    """

    size: int
    resize: Resize = "squash"
    interpolation: Interpolation = "bilinear"
    least: float = 0.8
    flip: float = 0.5
    channels: int = 3

    def __call__(self, image: torch.Tensor, key: int) -> torch.Tensor:
        return self._weak(image, _draws(key, 4))

    def _weak(self, image: torch.Tensor, u: NDArray[np.float64]) -> torch.Tensor:
        height, width = image.shape[-2:]
        share = math.sqrt(self.least + (1 - self.least) * u[0])
        high, wide = (height, width) if _squash(self.resize) else (min(height, width),) * 2
        high, wide = _side(share * high, high), _side(share * wide, wide)
        top, left = int(u[1] * (height - high + 1)), int(u[2] * (width - wide + 1))
        image = _resized(image, top, left, high, wide, (self.size,) * 2, self.interpolation)
        return image.flip(-1) if u[3] < self.flip else image

    def describe(self) -> str:
        return _describe(self)


@dataclass(frozen=True)
class Strong(Weak):
    """The weak view, then RandAugment (`num_ops` operations at a magnitude of 0..30), then one grey square (cutout).

    Operations, magnitudes and signs are those of torchvision's v2.RandAugment; random numbers come from the key. The
    side of the square is uniform in [0, cutout · S]; its centre may be anywhere, so that part of it may lie outside.
    RandAugment: Cubuk et al., 2020. Cutout: DeVries and Taylor, 2017.
    """

    num_ops: int = 2
    magnitude: int = 9
    cutout: float = 0.5

    def __call__(self, image: torch.Tensor, key: int) -> torch.Tensor:
        u = _draws(key, 7 + 2 * self.num_ops)
        image = self._weak(image, u)
        level = self.magnitude / (_BINS - 1)
        for which, sign in u[7:].reshape(-1, 2):
            op = _OPS[int(which * len(_OPS))]
            image = op(image, level, -1 if sign < 0.5 else 1)
        side = round(u[4] * self.cutout * self.size)
        top, left = (int(place * self.size) - side // 2 for place in u[5:7])
        image = image.clone(memory_format=torch.contiguous_format)
        image[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = _GREY
        return image


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

    With `keep` there is "square" too, the squashed plain view; "weak" and "strong" are squashed then.

    crop: the smallest share of the image that a random crop covers. strong: further fields of `Strong`.
    """
    augmented: Resize = "squash" if resize == "keep" else resize
    views: dict[str, View] = {
        "plain": Plain(size, resize, interpolation, crop_pct, channels),
        "weak": Weak(size, augmented, interpolation, least=crop, channels=channels),
    }
    if resize == "keep":
        views["square"] = Plain(size, "squash", interpolation, crop_pct, channels)
    if channels == 3:
        views["strong"] = Strong(size, augmented, interpolation, least=crop, **strong)
    return views


def _describe(view: Plain | Weak) -> str:
    values = {field.name: getattr(view, field.name) for field in fields(view)}
    if view.channels == 3:  # as in the caches of versions without it
        del values["channels"]
    parts = [f"{name}={value}" for name, value in values.items()]
    return f"{type(view).__name__}({','.join(parts)},version={_VERSION})"


def draw_uniform(keys: NDArray[np.uint64], number: int) -> NDArray[np.float64]:
    """Return the random numbers of views: keys (B,) -> (B, number) in [0, 1)."""
    return uniform(keys[:, None], _PURPOSE, np.arange(number)[None, :])


def _draws(key: int, number: int) -> NDArray[np.float64]:
    return uniform(key, _PURPOSE, np.arange(number))


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


def _squash(resize: str) -> bool:
    if resize not in ("squash", "crop"):
        raise UserError(f"there is no resize mode {resize!r}", "use squash, crop or keep")
    return resize == "squash"


def _side(length: float, most: int) -> int:
    return min(max(round(length), 1), most)


def _torchvision() -> Any:
    """Return torchvision's functions; imported on first use, because that takes seconds."""
    from torchvision.transforms.v2 import functional

    return functional


def _resized(
    image: torch.Tensor, top: int, left: int, height: int, width: int, shape: tuple[int, int], interpolation: str
) -> torch.Tensor:
    """Return a box of the image, resized to (H, W) with antialiasing as torchvision does it."""
    if interpolation not in _INTERPOLATIONS:
        raise UserError(f"there is no interpolation {interpolation!r}", "use bilinear or bicubic")
    if image.dtype != torch.uint8 or image.ndim != 3:
        raise ValueError(f"a view takes uint8 (C, H, W), not {image.dtype} {tuple(image.shape)}")
    # Resizing bytes is vectorised for channels last only; a crop must be dense to count as channels last.
    box = image.permute(1, 2, 0)[top : top + height, left : left + width].contiguous().permute(2, 0, 1)
    if (height, width) != shape:
        # These strides say unambiguously that a batch of one image is channels last, and so is the output.
        batch = box.as_strided((1, *box.shape), (box.numel(), *box.stride()))
        box = F.interpolate(batch, shape, mode=interpolation, align_corners=False, antialias=True)[0]
    return box.clone(memory_format=torch.contiguous_format)


def _affine(
    image: torch.Tensor, *, translate: list[int], shear: list[float], center: list[float] | None
) -> torch.Tensor:
    function = _torchvision().affine
    out: torch.Tensor = function(image, angle=0.0, translate=translate, scale=1.0, shear=shear, center=center)
    return out


def _shear(slope: float) -> float:
    # torchvision shears by the tangent of an angle in degrees; the magnitude is the slope itself.
    return math.degrees(math.atan(slope))


def _blend(image: torch.Tensor, other: torch.Tensor, factor: float) -> torch.Tensor:
    """factor · image + (1 − factor) · other, in bytes."""
    return image.mul(factor).add_(other, alpha=1 - factor).clamp_(0, 255).to(torch.uint8)


def _contrast(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Like torchvision's, with an exact sum: a float32 mean of a large image depends on the number of threads."""
    grey: torch.Tensor = _torchvision().rgb_to_grayscale(image)
    mean = grey.sum(dtype=torch.int64).double().div(grey.numel()).float()
    return _blend(image, mean, factor)


def _sharpness(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Like torchvision's, several times faster: the 3 × 3 kernel (ones, 5 in the centre, / 13) in integers."""
    if min(image.shape[-2:]) <= 2:
        return image
    x = image.to(torch.int16)
    rows = x[:, :-2] + x[:, 1:-1] + x[:, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[:, 1:-1, 1:-1]
    blurred = total.float().div_(13).round_()
    out = image.float()
    inner = out[:, 1:-1, 1:-1]
    inner.add_(blurred.sub_(inner), alpha=1 - factor)
    return out.clamp_(0, 255).to(torch.uint8)


def _translate(image: torch.Tensor, x: float, y: float) -> torch.Tensor:
    return _affine(image, translate=[int(x), int(y)], shear=[0.0, 0.0], center=None)


Op = Callable[[torch.Tensor, float, int], torch.Tensor]

#: RandAugment's operations on (image, level in 0..1, sign): v2.RandAugment's, with its ranges.
RANDAUGMENT_OPS: dict[str, Op] = {
    "Identity": lambda image, level, sign: image,
    "ShearX": lambda image, level, sign: _affine(
        image, translate=[0, 0], shear=[_shear(sign * 0.3 * level), 0.0], center=[0.0, 0.0]
    ),
    "ShearY": lambda image, level, sign: _affine(
        image, translate=[0, 0], shear=[0.0, _shear(sign * 0.3 * level)], center=[0.0, 0.0]
    ),
    "TranslateX": lambda image, level, sign: _translate(image, sign * 150 / 331 * level * image.shape[-1], 0),
    "TranslateY": lambda image, level, sign: _translate(image, 0, sign * 150 / 331 * level * image.shape[-2]),
    "Rotate": lambda image, level, sign: _torchvision().rotate(image, sign * 30 * level),
    "Brightness": lambda image, level, sign: _torchvision().adjust_brightness(image, 1 + sign * 0.9 * level),
    "Color": lambda image, level, sign: _torchvision().adjust_saturation(image, 1 + sign * 0.9 * level),
    "Contrast": lambda image, level, sign: _contrast(image, 1 + sign * 0.9 * level),
    "Sharpness": lambda image, level, sign: _sharpness(image, 1 + sign * 0.9 * level),
    "Posterize": lambda image, level, sign: _torchvision().posterize(image, round(8 - 4 * level)),
    "Solarize": lambda image, level, sign: _torchvision().solarize(image, 255 * (1 - level)),
    "AutoContrast": lambda image, level, sign: _torchvision().autocontrast(image),
    "Equalize": lambda image, level, sign: _torchvision().equalize(image),
}
_OPS = tuple(RANDAUGMENT_OPS.values())
