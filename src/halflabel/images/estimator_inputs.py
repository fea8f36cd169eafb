"""The inputs of the estimator: X as images, and y as a table of present, absent and unknown labels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d
from torch import Tensor

from halflabel.errors import UserError
from halflabel.images.decode import image_pixels
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table

Zero = Literal["unknown", "absent", "auto"]


class InputImages(NamedTuple):
    """Images; `keys` (N,) are absolute paths, or hashes of `pixels`, each (3, H, W)."""

    keys: list[str]
    pixels: Sequence[NDArray[np.uint8]] | NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.keys)


class InputLabels(NamedTuple):
    """Labels as the methods take them, (N, C) int8; the classes; what 0 means, None for y (N,)."""

    labels: NDArray[np.int8]
    classes: NDArray[Any]
    zero: Zero | None
    given: Labels | None = None  # with the names of the images

    @property
    def rows(self) -> Labels:
        names = [str(name) for name in self.classes]
        classes = names if len(set(names)) == len(names) else None
        return self.given or Labels.of(Table.from_dense(self.labels, classes=classes))


def read_images(X: Any) -> InputImages | None:
    """Return X as images, or None if it holds features."""
    if isinstance(X, str | Path):
        raise UserError("X is one path", "give a list of image files")
    if isinstance(X, Tensor):
        X = X.numpy(force=True)
    if isinstance(X, np.ndarray) and X.ndim == 4 and X.dtype == np.uint8:
        channels = [axis for axis in (1, 3) if X.shape[axis] == 3]
        if len(channels) != 1:
            raise UserError(f"images of shape {X.shape} have no one axis of 3 channels", "give (N, 3, H, W)")
        pixels = np.ascontiguousarray(X if channels == [1] else X.transpose(0, 3, 1, 2))
        return InputImages([_digest(image) for image in pixels], pixels)
    listed = X.tolist() if getattr(X, "ndim", 0) == 1 else X
    if isinstance(listed, Sequence) and len(listed) and all(isinstance(item, str | Path) for item in listed):
        return InputImages([os.path.abspath(item) for item in listed])
    if isinstance(listed, Sequence) and len(listed) and all(isinstance(item, Image.Image) for item in listed):
        decoded = [np.ascontiguousarray(image_pixels(item).transpose(2, 0, 1)) for item in listed]
        return InputImages([_digest(image) for image in decoded], decoded)
    return None


def _digest(image: NDArray[np.uint8]) -> str:
    return hashlib.sha256(repr(image.shape).encode() + image.tobytes()).hexdigest()


def read_labels(y: Any, zero: Zero) -> InputLabels:
    """Read y (N, C), (N,), a Table or Labels; `zero` says what 0 means in y (N, C)."""
    if isinstance(y, Table | Labels):
        rows = Labels.of(y)
        table = rows.training
        return InputLabels(table.dense(), np.array(list(table.classes)), "unknown", rows)
    is_sparse = hasattr(y, "toarray")
    if not is_sparse and np.asarray(y).ndim < 2:
        return _read_single(y)
    names = np.asarray(y.columns) if hasattr(y, "columns") else None
    values = check_array(y, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y")
    unknown = np.isnan(values)
    wrong = ~unknown & ~np.isin(values, (-1, 0, 1))
    if wrong.any():
        raise UserError(
            f"{values[wrong][0]:g} is not a label",
            "use 1 present, -1 absent, NaN unknown; give single-label classes as a y of one dimension",
        )
    if zero == "auto":
        zero = _meaning_of_zero(values, unknown)
    labels = np.where(unknown, 0, values).astype(np.int8)
    if zero == "absent":
        labels[values == 0] = -1
    classes = np.arange(values.shape[1]) if names is None else names
    return InputLabels(labels, classes, zero)


def _read_single(y: Any) -> InputLabels:
    """Read one class per image: a column for each class, also for two, since methods that rank classes need both."""
    y = column_or_1d(y)
    check_array(y, ensure_2d=False, dtype=None, input_name="y")
    check_classification_targets(y)
    classes = np.unique(y)
    return InputLabels(np.where(y[:, None] == classes, 1, -1).astype(np.int8), classes, None)


def _meaning_of_zero(values: NDArray[np.float64], unknown: NDArray[np.bool_]) -> Zero:
    if not (values == 0).any():
        return "auto"
    has_minus, has_nan = bool((values == -1).any()), bool(unknown.any())
    if has_minus == has_nan:
        beside = "both -1 and NaN" if has_minus else "neither -1 nor NaN"
        raise UserError(
            f"y has 0 and {beside}, so 0 may mean absent or unknown",
            'state it: zero="absent" (as in scikit-learn\'s indicator) or zero="unknown"',
        )
    return "unknown" if has_minus else "absent"
