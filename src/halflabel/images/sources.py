"""Sources of image views: a plan of batches goes in, tensors come out in the plan's order.

Every random choice is keyed by (seed, epoch, image name, view): results do not depend on workers or restarts.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from halflabel.errors import UserError
from halflabel.images.decode import BadImage, StoreFailed, item_files, none_found_error, read_with_digest
from halflabel.images.file_identity import digest_contents, group_copies
from halflabel.images.quarantine import Quarantine, TooManyBadImages
from halflabel.images.views import View, stack_images, view_keys
from halflabel.labels.groups import image_groups
from halflabel.labels.names import Names
from halflabel.labels.split import group_numbers, join_groups
from halflabel.system import distributed
from halflabel.system.remote import local_folder
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import hash_names

_SHARED_MEMORY = Path("/dev/shm")  # on Linux; by default 64 MB in a container
_SPARE = 4  # batches of each worker that must fit into it

Plan = Sequence[NDArray[np.int64]]  # image numbers, batch by batch


class FetchedBatch(NamedTuple):
    """The views of one batch; images that could not be read are left out."""

    images: NDArray[np.int64]  # (B,) image numbers
    views: tuple[Tensor, ...]  # each (B, …); an `ImageList` for plain views of different shapes


class Source(Protocol):
    """Returns views of numbered images."""

    names: Names
    hashes: NDArray[np.uint64]

    def __len__(self) -> int: ...

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        """Yield the batches of the plan in order, with the named views ("plain", "weak", "strong") of each image."""
        ...


def preferred_order(source: Source, seed: int, epoch: int) -> NDArray[np.int64] | None:
    """Return the order in which a source is read fastest, by seed and epoch; None if any order will do."""
    if isinstance(source, Subset):
        whole = preferred_order(source.whole, seed, epoch)
        return None if whole is None else source.numbers(whole)
    order: Callable[[int, int], NDArray[np.int64] | None] | None = getattr(source, "order", None)
    return None if order is None else order(seed, epoch)


def sequential_plan(count: int, batch_size: int) -> Plan:
    """Return the plan of all images in order."""
    return plan_of(np.arange(count), batch_size)


def plan_of(images: NDArray[np.int64], batch_size: int) -> Plan:
    """Return the plan of some images in order."""
    return [images[first : first + batch_size] for first in range(0, len(images), batch_size)]


class Arrays:
    """Decoded images held in memory, 3·H·W bytes each: (N, 3, H, W) uint8, or a list of (3, H, W) of any sizes."""

    def __init__(self, images: Tensor | Sequence[Tensor], names: Names, views: Mapping[str, View]) -> None:
        self.images = images
        self.names = names
        self.views = views
        self.hashes = hash_names(names.array)

    def __len__(self) -> int:
        return len(self.images)

    def digest(self) -> str:
        """Return a digest of the images."""
        digest = hashlib.sha256()
        for image in self.images:
            digest.update(image.contiguous().numpy().data)
        return digest.hexdigest()[:16]

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        chosen = [self.views[name] for name in views]
        for index in plan:
            keys = view_keys(seed, epoch, self.hashes[index], len(chosen))
            yield FetchedBatch(
                index,
                tuple(
                    stack_images([view(self.images[i], int(key)) for i, key in zip(index, keys[:, v], strict=True)])
                    for v, view in enumerate(chosen)
                ),
            )


class Features:
    """Cached features or maps of a frozen backbone: one view per image, (N, D) or (N, D, h, w), any float type.

    "plain" and "weak" are both the cached view. `strong` holds K more arrays of that shape; the view "strong" is one of
    them, drawn for each seed, epoch and image. Where it is empty, strong views are an error; where it is None, "strong"
    is the cached view, with a warning. Images numbered in `bad` have no features and are left out of their batch.
    """

    def __init__(
        self,
        values: NDArray[Any] | Tensor,
        names: Names,
        bad: Sequence[int] = (),
        *,
        strong: Sequence[NDArray[Any] | Tensor] | None = None,
    ) -> None:
        self.values = values
        self.names = names
        self.bad = np.asarray(bad, dtype=np.int64)
        self.strong = strong
        self.hashes = hash_names(names.array)

    def __len__(self) -> int:
        return len(self.values)

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        if "strong" in views and self.strong is None:
            warnings.warn(
                "these features have no strong views: a method with weak and strong views sees the same features twice",
                stacklevel=2,
            )
        elif "strong" in views and not self.strong:
            raise UserError(
                "the method needs strong views, but these features were cached without them",
                "cache them with copies=1 or more, or use a method with one view",
            )
        for index in plan:
            if len(self.bad):
                index = np.setdiff1d(index, self.bad, assume_unique=True)
            keys, plain = view_keys(seed, epoch, self.hashes[index], len(views)), _take(self.values, index)
            tensors = [plain] * len(views)
            for number, name in enumerate(views):
                if self.strong and name == "strong":
                    tensors[number] = _draw(self.strong, index, keys[:, number])
            yield FetchedBatch(index, tuple(tensors))


def _draw(strong: Sequence[NDArray[Any] | Tensor], index: NDArray[np.int64], keys: NDArray[np.uint64]) -> Tensor:
    """Return for each image the strong view that its key selects."""
    which = keys % np.uint64(len(strong))
    rows = torch.cat([_take(values, index[which == copy]) for copy, values in enumerate(strong)])
    place = np.argsort(np.argsort(which, kind="stable"))  # the row of each image in `rows`
    return rows[torch.from_numpy(place)]


def _take(values: NDArray[Any] | Tensor, index: NDArray[np.int64]) -> Tensor:
    if isinstance(values, Tensor):
        return values[torch.from_numpy(index)].float()
    return torch.from_numpy(np.asarray(values[index], dtype=np.float32))


class Subset:
    """A subset of the images of another source, renumbered from 0."""

    def __init__(self, whole: Source, index: NDArray[np.int64]) -> None:
        self.whole = whole
        self.index = index
        self.names = whole.names.take(index)
        self.hashes = whole.hashes[index]
        self._number = np.full(len(whole), -1, np.int64)
        self._number[index] = np.arange(len(index))

    def __len__(self) -> int:
        return len(self.index)

    def numbers(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert image numbers of the whole source to numbers of this subset; images outside it are left out."""
        numbers: NDArray[np.int64] = self._number[index]
        return numbers[numbers >= 0]

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        for images, tensors in self.whole.fetch([self.index[batch] for batch in plan], views, seed=seed, epoch=epoch):
            yield FetchedBatch(self._number[images], tensors)


class Images:
    """Image files, decoded and augmented by worker processes.

    An unreadable file goes to `quarantine` and is left out of its batch; more than the share `max_bad` of all images
    raise TooManyBadImages. `digests` are the content digests (N,) of the images that were read so far, 0 of the others.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        names: Names,
        views: Mapping[str, View],
        *,
        workers: int = 0,
        max_bad: float = 0.01,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.paths: Sequence[str] = [str(path) for path in paths]
        self.names = names
        self.views = views
        self.workers = workers
        self.max_bad = max_bad
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self.hashes = hash_names(names.array)
        self.digests = np.zeros(len(names), np.uint64)
        self.bad: dict[int, tuple[str, str, str]] = {}  # by number: image, path, reason
        self._plan = _PlanSampler()
        self._loader: DataLoader[Any] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"digests": state["digests"].copy()}  # Ray gives workers read-only arrays

    def __len__(self) -> int:
        return len(self.paths)

    def digest(self) -> str:
        """Return a digest of the beginning and end of each file."""
        return digest_contents(self.paths)

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        if self._loader is None:
            self._loader = DataLoader(
                _Decoder(self._reader(), self.views),
                batch_sampler=self._plan,
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
                collate_fn=_collate,
                pin_memory=torch.cuda.is_available(),
            )
        # Without `self`: in a reference cycle the garbage collector would end the workers late.
        names, hashes = tuple(views), self.hashes

        def items(index: NDArray[np.int64]) -> list[_Item]:
            keys = view_keys(seed, epoch, hashes[index], len(names)).tolist()
            return [(number, names, image_keys) for number, image_keys in zip(index.tolist(), keys, strict=True)]

        self._plan.items = map(items, self._paced(plan))
        for numbers, digests, stacked, bad in self._loader:
            for number, error in bad:
                self.mark_bad(number, error)
            images = np.asarray(numbers, dtype=np.int64)
            self.digests[images] = np.asarray(digests, dtype=np.uint64)
            through_pipe = [stack_images([*map(torch.from_numpy, view)]) for view in stacked if isinstance(view, list)]
            yield FetchedBatch(images, tuple(through_pipe or stacked))

    def _paced(self, plan: Plan) -> Iterable[NDArray[np.int64]]:
        """Return the batches of a plan, as they are to be sent to the workers."""
        return plan

    def part(self, index: NDArray[np.int64]) -> Images:
        """Return a source of some images, renumbered from 0, that can be sent to another process and decodes there."""
        paths = [Path(self.paths[number]) for number in index.tolist()]
        return Images(paths, self.names.take(index), self.views, max_bad=1.0)

    def _reader(self) -> _Reader:
        """Return a function for the workers that decodes the image of a number for some views, with its digest."""
        return partial(_read_file, self.paths)

    def group_copies(self) -> NDArray[np.int64]:
        """Return the group of each image (N,): images with the same bytes are in one group."""
        return group_copies(self.paths)

    def mark_bad(self, number: int, error: BadImage) -> None:
        """Add an unreadable image as `mark_unreadable`; one whose object store failed is an error at once."""
        if isinstance(error, StoreFailed):
            raise UserError(f"{error.path} could not be read from its store", error.reason)
        self.mark_unreadable(number, str(error.path), error.reason)

    def mark_unreadable(self, number: int, path: str, reason: str) -> None:
        """Add an unreadable image to the quarantine, once; too many raise TooManyBadImages."""
        if self._note(number, path, reason):
            self.quarantine.check(len(self), self.max_bad)

    def mark_missing(
        self, numbers: Iterable[int], folder: Path, reason: str = "no such file", lack: str = "file"
    ) -> None:
        """Add all images without a file before any is opened; too many raise TooManyBadImages and are listed."""
        for number in numbers:
            self._note(number, self.paths[number], reason)
        try:
            self.quarantine.check(len(self), self.max_bad, missing=f"{lack} in {folder}")
        except TooManyBadImages:
            if distributed.is_main():
                self.quarantine.write()
            raise

    def _note(self, number: int, path: str, reason: str) -> bool:
        if number in self.bad:
            return False
        self.bad[number] = (self.names[number], path, reason)
        self.quarantine.add(*self.bad[number])
        return True


def open_images(
    names: Names,
    folder: Path,
    views: Mapping[str, View],
    *,
    workers: int = 0,
    max_bad: float = 0.01,
    bad_images: Path | None = None,
    also_in: Path | None = None,
) -> Images:
    """Open the images of a label table in a folder or a pack, or their features; some may be in `also_in` instead.

    An id that names a folder is an item of several images. More missing images than the share `max_bad` raise an error
    before any image is read; `bad_images` is then written to list them.
    """
    from halflabel.images.pack.read import is_pack, open_pack
    from halflabel.images.pack.source import open_packed_images

    folder = local_folder(folder)
    quarantine = Quarantine(bad_images)
    also_in = also_in if also_in is not None and also_in != folder and also_in.is_dir() else None
    if is_pack(folder) and (also_in is None or (open_pack(folder).find(names.array) >= 0).all()):
        packed = open_packed_images(names, folder, views, workers=workers, max_bad=max_bad, quarantine=quarantine)
        packed.mark_missing(np.flatnonzero(packed.positions < 0).tolist(), folder, "not in the pack")
        return packed
    from halflabel.images.stored_features import StoredFeatures, holds_features

    if holds_features(folder):
        return StoredFeatures(names, folder, views, max_bad=max_bad, quarantine=quarantine)
    from halflabel.images.items import Items

    image_ids = list(names)
    files_of_images = item_files(image_ids, folder)
    if also_in is not None and not all(files_of_images):
        others = item_files(image_ids, also_in)
        files_of_images = [files or more for files, more in zip(files_of_images, others, strict=True)]
    missing = [number for number, files in enumerate(files_of_images) if not files]
    if len(missing) == len(image_ids):
        raise none_found_error(image_ids, folder)
    source: Images
    if any(len(files) > 1 for files in files_of_images):
        source = Items(files_of_images, names, views, workers=workers, max_bad=max_bad, quarantine=quarantine)
    else:
        paths = [files[0] if files else folder / name for name, files in zip(image_ids, files_of_images, strict=True)]
        source = Images(paths, names, views, workers=workers, max_bad=max_bad, quarantine=quarantine)
    source.mark_missing(missing, folder)
    return source


def share_what_was_read(source: Source) -> None:
    """Tell every process the digests of the images that the others read, and which images they could not read."""
    while (whole := getattr(source, "whole", None)) is not None:  # the source of a Subset or DeviceViews
        source = whole
    if distributed.is_distributed() and isinstance(source, Images):
        for bad, digests in distributed.all_gather((source.bad, source.digests)):
            source.digests = np.maximum(source.digests, digests)
            for number, (_, path, reason) in sorted(bad.items()):
                source.mark_unreadable(number, path, reason)


_Item = tuple[int, tuple[str, ...], list[int]]  # image number, names and keys of its views
_Reader = Callable[[int, list[View]], tuple[Tensor, int]]


class _PlanSampler(Sampler[list[_Item]]):
    """The batches of a plan, replaced for each pass while the workers stay alive."""

    def __init__(self) -> None:
        self.items: Iterable[list[_Item]] = ()

    def __iter__(self) -> Iterator[list[_Item]]:
        return iter(self.items)


class _Decoder(Dataset[Any]):
    """The dataset that the workers hold, which turns an item of the plan into views."""

    def __init__(self, read: _Reader, views: Mapping[str, View]) -> None:
        self.read, self.views = read, views

    def __getitem__(self, item: _Item) -> Any:
        number, names, keys = item
        views = [self.views[name] for name in names]
        try:
            image, digest = self.read(number, views)
        except BadImage as bad:
            return number, 0, bad
        return number, digest, tuple(view(image, key) for view, key in zip(views, keys, strict=True))


def _read_file(paths: Sequence[str], number: int, views: list[View]) -> tuple[Tensor, int]:
    return read_with_digest(paths[number], channels=views[0].channels)


def _collate(items: list[Any]) -> tuple[list[int], list[int], list[Any], list[tuple[int, BadImage]]]:
    """Return the numbers, digests and views of the readable images, and the others.

    Where shared memory is small, views are arrays of NumPy, which go through a pipe: a worker that cannot allocate
    shared memory would print a traceback, and the other processes wait for ever.
    """
    good = [item for item in items if item[1]]
    stacked: list[Any] = [stack_images(same) for same in zip(*(views for _, _, views in good), strict=True)]
    bad = [(number, error) for number, digest, error in items if not digest]
    worker = get_worker_info()
    if worker is not None and _SHARED_MEMORY.is_dir():
        size = sum(tensor.nbytes for _, _, views in good for tensor in views)
        if shutil.disk_usage(_SHARED_MEMORY).free < _SPARE * worker.num_workers * size:
            stacked = [[each.numpy() for each in view] for view in stacked]
    return [number for number, _, _ in good], [digest for _, digest, _ in good], stacked, bad


def group_images(
    stated: str | None, names: Names, source: Images | Arrays, reporter: Reporter = SILENT, *, required: bool = True
) -> NDArray[np.int64] | None:
    """Return the group of each image (N,), None if each is alone; copies of one file, and groups `stated`, are one."""
    by_option = image_groups(stated, names, required=required)
    groups = group_numbers(by_option, len(names))
    if isinstance(source, Images):
        of_file = source.group_copies()
        groups = join_groups(groups, of_file)
        if copies := int(np.count_nonzero(of_file != np.arange(len(of_file)))):
            reporter.message(f"{copies} images are copies of other images: they are held out together")
    return groups if by_option is not None or len(np.unique(groups)) < len(groups) else None
