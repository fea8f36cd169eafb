"""The policy `unlisted`: what (image, class) pairs mean that a file does not list, for formats of present classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.audit import Audit
from halflabel.labels.labels import UNLISTED_SOURCE, Labels
from halflabel.labels.policy import Policy
from halflabel.system.memory import physical_memory

_ENTRY_BYTES = 50  # that each absent entry takes while it is added


def unlisted_not_stated(reason: str, complete: str = "the lists are complete") -> tuple[str, str]:
    """The message and fix of the error for a file that lists present classes only, without `unlisted` stated."""
    return (
        f"{reason}, so what is not listed may be absent or unknown",
        f"add ‹unlisted=unknown› (nobody looked) or ‹unlisted=absent› ({complete})",
    )


def apply_unlisted_policy(
    rows: Labels, policy: Policy, audit: Audit, *, images: NDArray[np.bool_] | None = None, default: str = "unknown"
) -> Labels:
    """Mark unlisted pairs absent if the policy says so, else count them as unknown in the audit.

    `images` (N,): the images whose unlisted pairs may be absent; all if None. `default` holds if nothing is stated.
    """
    if (policy.unlisted or default) == "absent":
        return mark_unlisted_absent(rows, audit, images=images)
    # Sorting millions of numbers is several times faster than np.unique.
    pairs = np.sort(rows.image.astype(np.int64) * len(rows.classes) + rows.column)
    listed = int(np.count_nonzero(np.diff(pairs, prepend=-1)))
    audit.add("not listed", "unknown", len(rows.images) * len(rows.classes) - listed)
    return rows


def mark_unlisted_absent(
    rows: Labels,
    audit: Audit,
    *,
    images: NDArray[np.bool_] | None = None,
    classes: NDArray[np.bool_] | None = None,
    raw: str = "not listed",
) -> Labels:
    """Add a row "absent" with the source UNLISTED_SOURCE for every pair without a row.

    The masks `images` (N,) and `classes` (C,) limit this to some images and classes. `raw` is the audit's word for
    these pairs.
    """
    shape = len(rows.images), len(rows.classes)
    if shape[0] * shape[1] * _ENTRY_BYTES > physical_memory() // 2:
        raise UserError(
            f"{shape[0]} images × {shape[1]} classes are too many to mark each unlisted pair absent",
            "use ‹unlisted=unknown›, with a method that assumes absence in training, such as an",
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
    return rows.append(Labels.build(rows.images, rows.classes, image, column, absent, UNLISTED_SOURCE))
