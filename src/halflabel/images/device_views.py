"""Views made on the device, a whole batch at a time, where files and worker processes would keep a GPU waiting.

All geometry of a view is one bilinear resampling of the S × S plain view, so pixels differ slightly from the CPU, which
crops the larger original.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.images.decode import BadImage
from halflabel.images.file_identity import content_digest
from halflabel.images.pack.read import decode_jpegs
from halflabel.images.pack.source import PackedImages
from halflabel.images.sources import Arrays, FetchedBatch, Images, Plan, Source, preferred_order, sequential_plan
from halflabel.images.views import View, Weak, view_keys

_MEMORY_SHARE = 0.6  # of the device's free memory


class DeviceViews:
    """Makes the views of another source on the device, from its plain views, a whole batch at a time.

    With `decode`, a GPU also decodes the JPEGs of a pack, where it can. After `hold`, or with the plain views of all
    images as `held` (N, 3, S, S), nothing is decoded again.
    """

    def __init__(
        self, whole: Images | Arrays, device: torch.device | str, *, decode: bool = False, held: Tensor | None = None
    ) -> None:
        self.whole = whole
        self.device = torch.device(device)
        self.decode = decode
        self.names, self.hashes, self.views = whole.names, whole.hashes, whole.views
        self.held = None if held is None else held.to(self.device)
        self._bad = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self.whole)

    def hold(self, progress: Callable[[int, int], None] | None = None) -> DeviceViews:
        """Decode the plain view of every image once and keep all of them on the device."""
        held = torch.zeros(self._shape, dtype=torch.uint8, device=self.device)
        plan = sequential_plan(len(self), 64)
        for planned, (index, views) in zip(plan, self.whole.fetch(plan, ("plain",)), strict=True):
            if len(index):
                held[torch.from_numpy(index).to(self.device)] = views[0].to(self.device)
            if progress is not None:
                progress(int(planned[-1]) + 1, len(self))
        self.held = held
        self._bad = np.array(sorted(getattr(self.whole, "bad", ())), np.int64)
        return self

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        """The shape of the plain views of all images."""
        plain = self.views["plain"]
        return len(self), plain.channels, plain.size, plain.size

    @property
    def fits(self) -> bool:
        """Whether the device has room for the plain views of all images."""
        return self.device.type == "cuda" and math.prod(self._shape) <= _MEMORY_SHARE * torch.cuda.mem_get_info()[0]

    def order(self, seed: int, epoch: int) -> NDArray[np.int64] | None:
        return None if self.held is not None else preferred_order(self.whole, seed, epoch)

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        def make_batches() -> Iterator[FetchedBatch]:
            for index, plain in self._plain(plan, seed, epoch):
                if not len(index):
                    yield FetchedBatch(index, ())
                    continue
                images = plain[0].to(self.device, non_blocking=True)
                keys = view_keys(seed, epoch, self.hashes[index], len(views))
                made = (make_view(self.views[name], images, keys[:, v]) for v, name in enumerate(views))
                yield FetchedBatch(index, tuple(made))

        is_prefetched = self.held is not None and self.held.is_cuda
        return _prefetch(make_batches()) if is_prefetched else make_batches()

    def _plain(self, plan: Plan, seed: int, epoch: int) -> Iterator[FetchedBatch]:
        """Yield the plain views of a plan."""
        whole = self.whole
        if self.held is not None:
            for planned in plan:
                index = np.setdiff1d(planned, self._bad, assume_unique=True) if len(self._bad) else planned
                at = torch.from_numpy(index).to(self.device, non_blocking=True)
                yield FetchedBatch(index, (self.held[at],))
        elif self.decode and self.device.type == "cuda" and isinstance(whole, PackedImages):
            yield from (self._decode_batch(whole, *batch) for batch in whole.read(plan))
        else:
            yield from whole.fetch(plan, ("plain",), seed=seed, epoch=epoch)

    def _decode_batch(
        self, whole: PackedImages, index: NDArray[np.int64], data: list[bytes | BadImage]
    ) -> FetchedBatch:
        """Return the plain views of stored images, decoded on the device."""
        encoded = [stored for stored in data if isinstance(stored, bytes)]
        decoded = decode_jpegs(encoded, self.device) if encoded else None
        images = iter(decoded or ())
        plain = whole.views["plain"]
        numbers, views = [], []
        for number, stored in zip(index.tolist(), data, strict=True):
            try:
                if isinstance(stored, BadImage):
                    raise stored
                if decoded:
                    image = next(images)
                else:
                    image = whole.pack.decode(int(whole.positions[number]), stored).to(self.device)
                views.append(plain(image, 0))
                numbers.append(number)
                whole.digests[number] = content_digest(stored)
            except BadImage as bad:
                whole.mark_bad(number, bad)
        return FetchedBatch(np.asarray(numbers, np.int64), (torch.stack(views),) if views else ())


def fastest_source(source: Source, device: str, progress: Callable[[int, int], None] | None = None) -> Source:
    """Return the source that keeps a GPU busiest, with all plain views on it where they fit; on a CPU the given one."""
    if device != "cuda" or not isinstance(source, Images | Arrays):
        return source
    views = DeviceViews(source, device, decode=isinstance(source, PackedImages))
    return views.hold(progress) if views.fits else views


def make_view(view: View, images: Tensor, keys: NDArray[np.uint64]) -> Tensor:
    """Make a view from plain views on their device: (B, 3, S, S) uint8 and keys (B,) -> (B, 3, S, S) uint8."""
    return view.batch(images, keys) if isinstance(view, Weak) else images


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
