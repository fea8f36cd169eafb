"""Items of several images, such as views of one product or patient: a folder of images that has one set of labels.

An image id that names a folder is an item. Its features are the mean of those of its images; so items need a frozen
backbone and a head on pooled features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.images.sources import Features, FetchedBatch, Images, Plan
from halflabel.images.views import View
from halflabel.labels.names import Names

_BLOCK = 4096  # items pooled at once


class Items(Images):
    """Items of one or more images; `paths` holds the first image of each, `images` all of them."""

    def __init__(
        self, files: Sequence[Sequence[Path]], names: Names, views: Mapping[str, View], **options: Any
    ) -> None:
        first = [each[0] if each else Path(name) for each, name in zip(files, names, strict=True)]
        super().__init__(first, names, views, **options)
        self.start = np.concatenate([[0], np.cumsum([len(each) for each in files])])
        everything = [path for each in files for path in each]
        options = {**options, "max_bad": 1.0, "quarantine": None}
        self.images = Images(everything, Names(map(str, everything)), views, **options)

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        raise UserError("items of several images need a frozen backbone", "use ‹tune=head›")

    def pool(self, values: Any, bad: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the mean (N, D) of the values of the readable images of each item, and the items without any."""
        pooled = np.zeros((len(self), values.shape[1]), np.float32)
        is_good = np.ones(len(self.images), bool)
        is_good[bad] = False
        item = np.repeat(np.arange(len(self)), np.diff(self.start))
        for first in range(0, len(self), _BLOCK):
            rows = slice(self.start[first], self.start[min(first + _BLOCK, len(self))])
            good = is_good[rows]
            np.add.at(pooled, item[rows][good], np.asarray(values[rows], np.float32)[good])
        count = np.bincount(item[is_good], minlength=len(self))
        pooled /= np.maximum(count, 1)[:, None].astype(np.float32)
        return pooled, np.flatnonzero(count == 0)


def pool_items(source: Items, features: Features) -> Features:
    """Return the features of items from those of all their images, and note the digests of the items."""
    if features.values.ndim != 2:
        raise UserError("items of several images need a head on pooled features", "use another method, such as bce")
    values, bad = source.pool(features.values, features.bad)
    source.digests[:] = 0
    np.add.at(source.digests, np.repeat(np.arange(len(source)), np.diff(source.start)), source.images.digests)
    for number in bad.tolist():
        source.mark_unreadable(number, source.paths[number], "no image of it can be read")
    return Features(values, source.names, bad.tolist())
