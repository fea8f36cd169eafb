"""The record engine: entries by name, in order, as readers collect them; it writes the audit and applies the policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.labels import UNLISTED_SOURCE, Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.system.memory import physical_memory

IN_BOTH_LISTS = "entries are in both lists: present wins, both rows are kept"

_ENTRY_BYTES = 50  # that each absent entry takes while it is added
_MEANINGS = {1: "present", -1: "absent", 2: "uncertain", 0: "retracted", None: "unknown"}


class Entries:
    """Collects entries; images, classes and sources are numbered in the order in which they first appear."""

    def __init__(self, format: str, *files: Path, images: Iterable[str] = (), classes: Iterable[str] = ()) -> None:
        self.audit = Audit(format, [str(file) for file in files])
        self.images = {name: number for number, name in enumerate(dict.fromkeys(images))}
        self.classes = {name: number for number, name in enumerate(dict.fromkeys(classes))}
        self.sources: dict[str, int] = {}
        self._counts: Counter[tuple[str, int | None]] = Counter()
        self._rows: list[tuple[int, int, int, int, float]] = []
        self._unknown: list[tuple[int, int]] = []

    def add(
        self, image: str, label: str, value: int | None, raw: str, source: str = "", score: float = math.nan
    ) -> None:
        """Add a row; `raw` is the audit's word for what the file has here. The value None, unknown, makes no row."""
        self._counts[raw, value] += 1
        if value is None:
            if image in self.images and label in self.classes:
                self._unknown.append((self.images[image], self.classes[label]))
            return
        self._rows.append(
            (
                self.images.setdefault(image, len(self.images)),
                self.classes.setdefault(label, len(self.classes)),
                value,
                self.sources.setdefault(source, len(self.sources)),
                score,
            )
        )

    def build(self) -> Labels:
        for sign, meaning in _MEANINGS.items():
            for (raw, each), count in self._counts.items():
                self.audit.add(raw, meaning, count * (each == sign))
        columns = zip(*self._rows, strict=True) if self._rows else [()] * 5
        image, column, value, source, score = map(np.array, columns)
        names = Names(self.images), Names(self.classes)
        return Labels.build(*names, image, column, value, source, score, list(self.sources) or [""])

    def read(
        self,
        policy: Policy,
        *,
        default: str = "unknown",
        complete: Container[str] | None = None,
        conflicts: str = IN_BOTH_LISTS,
    ) -> LabelImport:
        """The rows, with the policy for unlisted pairs of the images `complete`; unknown pairs stay unknown."""
        rows = self.build()
        unknown = np.array(self._unknown, np.int64).reshape(-1, 2).T
        self.audit.note_count(rows.count_conflicts(), conflicts)
        images = None if complete is None else np.array([name in complete for name in self.images], bool)
        rows = apply_unlisted_policy(rows, policy, self.audit, images=images, default=default, unknown=unknown)
        return LabelImport(rows, self.audit)


def utc_time(text: str) -> datetime:
    """A time in ISO form; one without a zone is UTC. ValueError, TypeError or OverflowError for anything else."""
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def require_unlisted(
    policy: Policy, reason: str, path: Path, complete: str = "the lists are complete", also: str = ""
) -> None:
    """Raise LabelError if a file lists present classes only and `unlisted` is not stated; `also` are other options."""
    if policy.unlisted is None:
        message = f"{reason}, so what is not listed may be absent or unknown"
        fix = f"add ‹unlisted=unknown›{also} (nobody looked) or ‹unlisted=absent›{also} ({complete})"
        raise LabelError(message, fix, path)


def apply_unlisted_policy(
    rows: Labels,
    policy: Policy,
    audit: Audit,
    *,
    images: NDArray[np.bool_] | None = None,
    default: str = "unknown",
    raw: str = "not listed",
    unknown: NDArray[np.int64] | None = None,
) -> Labels:
    """Mark unlisted pairs of `images` (N,) absent if the policy or `default` says so, else count them as unknown."""
    if (policy.unlisted or default) == "absent":
        return mark_unlisted_absent(rows, audit, images=images, raw=raw, unknown=unknown)
    pairs = rows.image.astype(np.int64) * len(rows.classes) + rows.column
    if unknown is not None:
        pairs = np.concatenate([pairs, unknown[0] * len(rows.classes) + unknown[1]])
    pairs.sort()  # sorting millions of numbers is several times faster than np.unique
    listed = int(np.count_nonzero(np.diff(pairs, prepend=-1)))
    audit.add(raw, "unknown", len(rows.images) * len(rows.classes) - listed)
    return rows


def mark_unlisted_absent(
    rows: Labels,
    audit: Audit,
    *,
    images: NDArray[np.bool_] | None = None,
    classes: NDArray[np.bool_] | None = None,
    raw: str = "not listed",
    unknown: NDArray[np.int64] | None = None,
) -> Labels:
    """Add a row "absent" for each pair of some images (N,) and classes (C,) without a row that is not `unknown`."""
    shape = len(rows.images), len(rows.classes)
    if shape[0] * shape[1] * _ENTRY_BYTES > physical_memory() // 2:
        raise UserError(
            f"{shape[0]} images × {shape[1]} classes are too many to mark each unlisted pair absent",
            "use ‹unlisted=unknown›, with a method that assumes absence in training, such as an",
        )
    unlisted = np.ones(shape, bool)
    unlisted[slice(0) if images is None else ~images] = False
    unlisted[:, slice(0) if classes is None else ~classes] = False
    unlisted[rows.image, rows.column] = False
    if unknown is not None:
        unlisted[tuple(unknown)] = False
    image, column = np.nonzero(unlisted)
    audit.add(raw, "absent", len(image))
    absent = np.full(len(image), -1, np.int8)
    return rows.append(Labels.build(rows.images, rows.classes, image, column, absent, UNLISTED_SOURCE))
