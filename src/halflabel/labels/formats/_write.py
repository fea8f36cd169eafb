"""Checks and small steps that several writers of label files share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.rows import Rows
from halflabel.system.files import atomic_write

__all__ = [
    "check_names",
    "shortest_float",
    "split_by_image",
    "write_compact_json",
]


def check_names(rows: Rows) -> None:
    """Raise UserError if an image or a class has an empty name."""
    if "" in rows.images or "" in rows.classes:
        raise UserError("an image or a class has no name", "give every image and every class a name")


def shortest_float(score: np.float32) -> float:
    """The float with the fewest digits that is the same float32: 0.7, not 0.699999988."""
    return float(str(score))


def split_by_image(rows: Rows, index: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Row indices that are ordered by image, as one array per image; without any image, one empty array."""
    return np.split(index, np.searchsorted(rows.image[index], np.arange(1, len(rows.images))))


def write_compact_json(path: Path, content: Any) -> None:
    """Write JSON in one line, completely or not at all; characters are not escaped."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
