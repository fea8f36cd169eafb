"""Images held on the GPU, and views made there, a whole batch at a time.

Decoding once and augmenting on the GPU keeps it busy where files and worker processes would be too slow. Random numbers
come from the same keys as on the CPU; the pixels differ slightly: the stored image is already S × S, and all geometry
of a view is one bilinear resampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from halflabel.errors import UserError
from halflabel.images.sources import FetchedBatch, Images, Plan, sequential_plan
from halflabel.images.views import RANDAUGMENT_OPS, Plain, Strong, View, Weak, draw_uniform, view_keys
from halflabel.labels.names import Names
from halflabel.system.rng import hash_names

_BINS = 31
_GREY = 128.0
_MEMORY_SHARE = 0.6  # of the device's free memory
_DRAW_BATCH = 4096  # images whose random numbers are drawn together


class DeviceImages:
    """Plain views of all images on the device, 3·S² bytes each; other views are made from them, batch by batch.

    Images numbered in `bad` could not be read and are left out of their batch.
    """

    def __init__(self, images: Tensor, names: Names, views: Mapping[str, View], bad: Sequence[int] = ()) -> None:
        self.images = images
        self.names = names
        self.views = views
        self.bad = np.asarray(bad, dtype=np.int64)
        self.hashes = hash_names(names.array)

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        batches = self._make_batches(plan, views, seed, epoch)
        return _prefetch(batches) if self.images.is_cuda else batches

    def _make_batches(self, plan: Plan, views: Sequence[str], seed: int, epoch: int) -> Iterator[FetchedBatch]:
        # Drawing the random numbers of many batches costs as much as of one.
        step = max(_DRAW_BATCH // max(len(plan[0]), 1), 1) if len(plan) else 1
        for first in range(0, len(plan), step):
            batches = [self._readable(index) for index in plan[first : first + step]]
            ends = np.cumsum([len(index) for index in batches])[:-1]
            keys = view_keys(seed, epoch, self.hashes[np.concatenate(batches)], len(views))
            parameters = [np.split(draw_parameters(self.views[name], keys[:, v]), ends) for v, name in enumerate(views)]
            for number, index in enumerate(batches):
                if not len(index):
                    yield FetchedBatch(index, ())
                    continue
                images = self.images[torch.from_numpy(index).to(self.images.device, non_blocking=True)]
                named = zip(views, parameters, strict=True)
                yield FetchedBatch(
                    index, tuple(apply_view(self.views[name], images, drawn[number]) for name, drawn in named)
                )

    def _readable(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.setdiff1d(index, self.bad, assume_unique=True) if len(self.bad) else index


def _prefetch(batches: Iterator[FetchedBatch]) -> Iterator[FetchedBatch]:
    """Make each batch on a separate CUDA stream while the model trains on the one before."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())

    def make() -> tuple[FetchedBatch | None, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            return next(batches, None), stream.record_event()

    upcoming, upcoming_done = make()
    while upcoming is not None:
        batch, done = upcoming, upcoming_done
        upcoming, upcoming_done = make()
        training_stream = torch.cuda.current_stream()
        training_stream.wait_event(done)
        for view in batch.views:
            view.record_stream(training_stream)  # otherwise its memory could be reused while it is read there
        yield batch


def load_to_device(
    source: Images, device: torch.device | str, progress: Callable[[int, int], None] | None = None
) -> DeviceImages:
    """Decode the plain view of every image once and keep all of them on the device."""
    plain = source.views["plain"]
    if not isinstance(plain, Plain):
        raise TypeError(f"the plain view is a {type(plain).__name__}")
    needed = len(source) * 3 * plain.size**2
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        if needed > _MEMORY_SHARE * free:
            raise UserError(
                f"{len(source)} images of {plain.size} px take {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free",
                "use ‹hold=files›, or a smaller ‹size›",
            )
    images = torch.zeros((len(source), 3, plain.size, plain.size), dtype=torch.uint8, device=device)
    for planned, (index, views) in zip(
        plan := sequential_plan(len(source), 64), source.fetch(plan, ("plain",)), strict=True
    ):
        if len(index):
            images[torch.from_numpy(index).to(device)] = views[0].to(device)
        if progress is not None:
            progress(int(planned[-1]) + 1, len(source))
    return DeviceImages(images, source.names, source.views, sorted(source.bad))


def make_view(view: View, images: Tensor, keys: NDArray[np.uint64]) -> Tensor:
    """Make a view from plain views on their device: (B, 3, S, S) uint8 and keys (B,) -> (B, 3, S, S) uint8."""
    return apply_view(view, images, draw_parameters(view, keys))


def draw_parameters(view: View, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Draw the random parameters of views from their keys (B,): (B, …) for `apply_view`."""
    if isinstance(view, Strong):
        return _strong_parameters(view, draw_uniform(keys, 7 + 2 * view.num_ops))
    if isinstance(view, Weak):
        return _flat(_box(view, draw_uniform(keys, 4)))
    return np.zeros((len(keys), 0), np.float32)


def apply_view(view: View, images: Tensor, parameters: NDArray[np.float32]) -> Tensor:
    """Make a view from plain views with parameters of `draw_parameters`."""
    if isinstance(view, Strong):
        return _strong(view, images, parameters)
    if isinstance(view, Weak):
        return _weak(view, images, parameters)
    return images


def _weak(view: Weak, images: Tensor, parameters: NDArray[np.float32]) -> Tensor:
    """A random crop resized back, mirrored with probability `flip`."""
    sent = _to_device(parameters, images)
    if view.least == 1:
        return torch.where(_each(sent[:, 0] < 0), images.flip(-1), images)
    return _resampled(images, sent).round().to(torch.uint8)


# The columns of `_strong_parameters` after the six of geometry.
_FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")
_SWITCHES = ("Posterize", "Solarize", "AutoContrast", "Equalize")


def _strong_parameters(view: Strong, u: NDArray[np.float64]) -> NDArray[np.float32]:
    """Geometry (6), factors (4), switches (4), and the grey square: top, bottom, left, right in pixels."""
    level = view.magnitude / (_BINS - 1)
    picks = u[:, 7:].reshape(len(u), view.num_ops, 2)
    which = (picks[..., 0] * len(RANDAUGMENT_OPS)).astype(np.int64)
    sign = np.where(picks[..., 1] < 0.5, -1.0, 1.0)
    names = list(RANDAUGMENT_OPS)

    def times(name: str) -> NDArray[np.float64]:
        """Return how often each image gets an operation, with its signs."""
        return np.asarray(((which == names.index(name)) * sign).sum(1))

    moves = _box(view, u)
    # Each maps a point of the result to the point of the input, in coordinates −1 … 1.
    ones, zeros = np.ones(len(u)), np.zeros(len(u))
    shear_x, shear_y = 0.3 * level * times("ShearX"), 0.3 * level * times("ShearY")
    # Sheared about the upper left corner: the shift keeps that corner in place.
    moves = moves @ _affine(ones, shear_x, shear_x, zeros, ones, zeros)
    moves = moves @ _affine(ones, zeros, zeros, shear_y, ones, shear_y)
    shift = 2 * 150 / 331 * level
    moves = moves @ _affine(ones, zeros, -shift * times("TranslateX"), zeros, ones, -shift * times("TranslateY"))
    angle = np.radians(30 * level * times("Rotate"))
    moves = moves @ _affine(np.cos(angle), -np.sin(angle), zeros, np.sin(angle), np.cos(angle), zeros)
    change = 1 + 0.9 * level * sign  # multiplied where an operation is drawn twice
    factors = [np.where(which == names.index(name), change, 1.0).prod(1) for name in _FACTORS]
    switches = [(which == names.index(name)).any(1) for name in _SWITCHES]
    side = np.round(u[:, 4] * view.cutout * view.size)
    top, left = ((u[:, place] * view.size).astype(np.int64) - side // 2 for place in (5, 6))
    rest = np.stack([*factors, *switches, top, top + side, left, left + side], 1)
    return np.concatenate([_flat(moves), rest.astype(np.float32)], 1)


def _strong(view: Strong, images: Tensor, parameters: NDArray[np.float32]) -> Tensor:
    """The weak view, then RandAugment's operations, then one grey square.

    The operations and magnitudes of each image are those of the view on the CPU. Their order is fixed: all geometry is
    one resampling together with the crop; changes of colour follow, in the order of `RANDAUGMENT_OPS`.
    """
    sent = _to_device(parameters, images)
    level = view.magnitude / (_BINS - 1)
    column = {name: 6 + place for place, name in enumerate((*_FACTORS, *_SWITCHES))}

    def number(name: str) -> Tensor:
        return _each(sent[:, column[name]])

    def taken(name: str) -> NDArray[np.bool_]:
        return parameters[:, column[name]] > 0

    x = _resampled(images, sent[:, :6])
    for name, factor in zip(_FACTORS, (_brightness, _saturation, _contrast, _sharpness), strict=True):
        x = factor(x, number(name))
    step = 2.0 ** (8 - round(8 - 4 * level))
    x = torch.where(number("Posterize") > 0, torch.floor(_round(x) / step) * step, x)
    x = torch.where((number("Solarize") > 0) & (x >= 255 * (1 - level)), 255 - x, x)
    if taken("AutoContrast").any():
        x = torch.where(number("AutoContrast") > 0, _autocontrast(x), x)
    if (rows := np.flatnonzero(taken("Equalize"))).size:
        at = torch.from_numpy(rows).to(x.device, non_blocking=True)
        x = x.index_copy(0, at, _equalized(x[at]))
    top, bottom, left, right = sent[:, -4:, None].unbind(1)
    cells = torch.arange(images.shape[-1], device=x.device)
    rows_in, columns_in = (cells >= top) & (cells < bottom), (cells >= left) & (cells < right)
    square = rows_in[:, None, :, None] & columns_in[:, None, None, :]
    return _round(torch.where(square, _GREY, x)).to(torch.uint8)


def _box(view: Weak, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the crop and flip of each image as affine maps (B, 3, 3) from the result to the whole image."""
    share = np.sqrt(view.least + (1 - view.least) * u[:, 0])
    free = 1 - share
    down, right = free * (2 * u[:, 1] - 1), free * (2 * u[:, 2] - 1)
    mirror = np.where(u[:, 3] < view.flip, -1.0, 1.0)
    return _affine(mirror * share, 0 * share, right, 0 * share, share, down)


def _affine(*parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, 3, 3) matrices [[a, b, c], [d, e, f], [0, 0, 1]] from six (B,) columns."""
    a, b, c, d, e, f = parts
    zero, one = np.zeros_like(a), np.ones_like(a)
    return np.stack([np.stack(row, -1) for row in ((a, b, c), (d, e, f), (zero, zero, one))], -2)


def _flat(maps: NDArray[np.float64]) -> NDArray[np.float32]:
    """(B, 3, 3) affine maps -> the six numbers of their first two rows."""
    return maps[:, :2].reshape(-1, 6).astype(np.float32)


def _to_device(parameters: NDArray[np.float32], images: Tensor) -> Tensor:
    return torch.from_numpy(parameters).to(images.device, non_blocking=True)


def _resampled(images: Tensor, maps: Tensor) -> Tensor:
    """Resample bilinearly, black outside: images (B, 3, S, S) and affine maps (B, 6) -> float 0..255."""
    places = _places(images.shape[-1], images.device).expand(len(images), -1, -1)
    grid = places.bmm(maps.view(-1, 2, 3).transpose(1, 2)).view(len(images), *images.shape[-2:], 2)
    return F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@cache
def _places(size: int, device: torch.device) -> Tensor:
    """Return the centres of size² pixels as (x, y, 1) in −1 … 1; F.affine_grid would recompute them each time."""
    steps = (torch.arange(size, device=device) * 2 + 1) / size - 1
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y, torch.ones_like(x)], -1).view(1, -1, 3)


def _each(values: Tensor) -> Tensor:
    """Reshape one value per image to broadcast over (B, 3, S, S)."""
    return values.view(-1, 1, 1, 1)


def _round(x: Tensor) -> Tensor:
    return x.clamp(0, 255).round()


def _grey(x: Tensor) -> Tensor:
    return (0.2989 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]).floor()


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp(0, 255)


def _saturation(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor + _grey(x) * (1 - factor)).clamp(0, 255)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor + _grey(x).mean((1, 2, 3), keepdim=True) * (1 - factor)).clamp(0, 255)


def _sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the 3 × 3 blur (ones, 5 in the centre, / 13); the border stays unchanged."""
    inner = x[..., 1:-1, 1:-1]
    blurred = ((9 * F.avg_pool2d(x, 3, 1) + 4 * inner) / 13).round()
    out = x.clone()
    out[..., 1:-1, 1:-1] = (inner * factor + blurred * (1 - factor)).clamp(0, 255)
    return out


def _autocontrast(x: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    flat = high <= low
    return torch.where(flat, x, ((x - low) * (255 / (high - low).clamp(min=1e-6))).clamp(0, 255))


def _equalized(x: Tensor) -> Tensor:
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
