"""All metrics of a table of scores that is too large to hold: read block by block, from a memory map or the like."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.metrics._inputs import ArrayLike, as_tensor
from halflabel.metrics.ranking import average_precision, mean_known
from halflabel.metrics.thresholded import Counts, calibration_sums, decision_counts, error_of, matches, rates

__all__ = ["Blockwise", "blockwise"]

_ROWS = 1 << 22  # scores read at a time
_COLUMNS = 1 << 27  # scores of some classes, all images, held at a time


class Blockwise(NamedTuple):
    """AP of each class (C,), the counts of decisions per class, and the numbers of `summary`."""

    ap: Tensor
    counts: Counts
    overall: dict[str, float]


def blockwise(scores: Any, labels: LabelTable | ArrayLike, thresholds: float | ArrayLike = 0.5) -> Blockwise:
    """`average_precision`, `decision_counts` and `summary` of a table of scores without holding it.

    scores: (N, C) probabilities in anything that has a shape and gives NumPy arrays for slices of images and of classes
    (`scores[10:20, 5:9]`): a np.memmap, np.load(…, mmap_mode="r"), an HDF5 or Zarr data set. Pages of a memory map are
    given back as soon as they are read. labels: (N, C) in {-1, 0, +1}, also memory-mapped, or a LabelTable, of which
    some rows at a time are spelled out. Values are those of the plain functions; sums of floats may differ in the last
    digits.

    Memory: about 1 GiB. Time: that of the plain functions, and N·C / 2^27 + 1 passes over the scores.
    """
    images, classes = scores.shape
    known = labels.shape
    if (images, classes) != tuple(known):
        raise UserError(
            f"scores have the shape {(images, classes)} and labels {tuple(known)}",
            "give one score per label: both images by classes, shape (N, C)",
        )
    counts = torch.zeros(len(Counts._fields), classes, dtype=torch.int64)
    right = torch.zeros(2, dtype=torch.int64)
    calibration: Tensor | None = None
    for rows in _slices(images, _ROWS // max(classes, 1)):
        part, truth = _read(scores, rows, slice(None)), _labels(labels, rows)
        _check(part, rows.start)
        counts += torch.stack(list(decision_counts(part, truth, thresholds)))
        right += torch.tensor(matches(part, truth, thresholds))
        sums = calibration_sums(part, truth)
        calibration = sums if calibration is None else calibration + sums
    ap = [
        average_precision(*_gather(scores, labels, columns)) for columns in _slices(classes, _COLUMNS // max(images, 1))
    ]
    per_class, decided = torch.cat(ap) if ap else torch.zeros(0, dtype=torch.float64), Counts(*counts)
    matched, judged = right.tolist()
    overall = {
        "mAP": mean_known(per_class),
        **{name: float(value) for name, value in rates(decided)._asdict().items()},
        "exact_match": matched / judged if judged else float("nan"),
        "ECE": float("nan") if calibration is None else error_of(calibration),
    }
    return Blockwise(per_class, decided, overall)


def _slices(size: int, step: int) -> Iterator[slice]:
    step = max(step, 1)
    for first in range(0, size, step):
        yield slice(first, min(first + step, size))


def _read(scores: Any, rows: slice, columns: slice) -> NDArray[Any]:
    """A block as an array of its own; the pages it came from count no longer as memory of this process."""
    block = np.array(scores[rows, columns])
    _release(scores)
    return block if block.dtype.kind == "f" else block.astype(np.float64)


def _labels(labels: LabelTable | ArrayLike, rows: slice) -> NDArray[Any]:
    if isinstance(labels, LabelTable):
        return labels.rows(np.arange(rows.start, rows.stop))
    if isinstance(labels, Tensor):
        return as_tensor(labels[rows]).cpu().numpy()
    block = np.array(labels[rows])
    _release(labels)
    return block


def _release(array: Any) -> None:
    """Drop the pages of a memory map that were read: from the system's cache they come back when asked for again."""
    pages = getattr(array, "_mmap", None)
    # A map that is written to privately would lose what was written.
    if isinstance(pages, mmap.mmap) and array.mode in ("r", "r+", "w+") and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _gather(scores: Any, labels: LabelTable | ArrayLike, columns: slice) -> tuple[NDArray[Any], NDArray[np.int8]]:
    """(N, c) scores and labels of some classes, put together from blocks of images."""
    images, width = scores.shape[0], columns.stop - columns.start
    truth = np.empty((images, width), np.int8)
    part: NDArray[Any] | None = None
    for rows in _slices(images, _ROWS // max(scores.shape[1], 1)):
        block = _read(scores, rows, columns)
        part = np.empty((images, width), block.dtype) if part is None else part
        part[rows] = block
        truth[rows] = _labels(labels, rows)[:, columns]
    return np.empty((images, width)) if part is None else part, truth


def _check(part: NDArray[Any], first: int) -> None:
    if part.size and np.isnan(part.max()):
        image, cls = np.argwhere(np.isnan(part))[0]
        raise UserError(
            f"the score of image {first + image} for class {cls} is NaN",
            "look for a diverged training run or a division by zero; drop the image, or give it a number",
        )
