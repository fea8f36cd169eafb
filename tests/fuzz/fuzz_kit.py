"""Shared by all fuzzed readers: the good files they start from, and how they are read."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.images.decode import BadImage

__all__ = [
    "CLASSES",
    "IMAGES",
    "TESTS",
    "Files",
    "Reader",
    "Refusal",
    "Rng",
    "gather",
    "load_module",
    "refusals",
    "small_table",
]

TESTS = Path(__file__).parents[1]
CLASSES = ("cat", "dog", "büé, x")
IMAGES = ("a.jpg", "b/c.png", "d e.jpg", "7")

Rng = random.Random
Files = dict[str, bytes]


class Refusal(Exception):
    """A response with status 4xx: a refusal that does not raise."""


def refusals() -> tuple[type[Exception], ...]:
    """The exceptions with which a reader may refuse a file."""
    from halflabel.review.thumbnails import ImageUnavailable

    return UserError, BadImage, ImageUnavailable, Refusal


@dataclass(frozen=True)
class Reader:
    """Good files by name, and `read(folder, rng)`, which reads them from a folder and may choose options at random."""

    name: str
    files: Files
    read: Callable[[Path, Rng], Any]
    fixed: tuple[str, ...] = ()  # files that are not mutated
    others: tuple[bytes, ...] = field(default=(), repr=False)  # to splice from

    @property
    def targets(self) -> list[str]:
        return sorted(name for name in self.files if name not in self.fixed)


def gather(folder: Path) -> Files:
    """All files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def load_module(name: str, path: Path) -> Any:
    """Import a module that is not in a package."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_table() -> Any:
    """A table of 4 images × 3 classes."""
    from halflabel.labels.table import Table

    labels = [[1, -1, 0], [0, 1, 1], [-1, 0, -1], [1, 1, 0]]
    return Table.from_dense(labels, IMAGES, CLASSES)
