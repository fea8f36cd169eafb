"""What is not listed: the policy `unlisted = absent`, for formats that name what is present and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.audit import Audit
from halflabel.labels.rows import Rows

__all__ = ["mark_unlisted_absent"]

_MOST_ENTRIES = 1_000_000_000  # spelled out, absent entries take 16 bytes each


def mark_unlisted_absent(
    rows: Rows,
    audit: Audit,
    *,
    images: NDArray[np.bool_] | None = None,
    classes: NDArray[np.bool_] | None = None,
    raw: str = "not listed",
) -> Rows:
    """Say "absent" for every pair that no row speaks of, with the source "unlisted".

    Masks `images` (N,) and `classes` (C,) leave out those of which nothing is to be said; `raw` is the audit's word.
    """
    shape = len(rows.images), len(rows.classes)
    if shape[0] * shape[1] > _MOST_ENTRIES:
        raise UserError(
            f"{shape[0]} images × {shape[1]} classes are too many to call each unlisted one absent",
            "use --unlisted unknown, with a method that assumes absence in training, such as an",
        )
    unlisted = np.ones(shape, bool)
    if images is not None:
        unlisted[~images] = False
    if classes is not None:
        unlisted[:, ~classes] = False
    unlisted[rows.image, rows.column] = False
    image, column = np.nonzero(unlisted)
    audit.add(raw, "absent", len(image))
    absent = np.full(len(image), -1, np.int8)
    return rows.append(Rows.build(rows.images, rows.classes, image, column, absent, "unlisted"))
