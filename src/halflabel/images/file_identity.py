"""Which image files are the same: two ids of one file, copies, and files that were replaced since they were read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError

_END_BYTES = 1 << 12  # read at the beginning and at the end of a file


def refuse_twins(names: Iterable[str], files: Sequence[object]) -> None:
    """Raise UserError if two image ids are the same file; None and −1 mean that an id has no file."""
    first: dict[object, str] = {}
    for name, file in zip(names, files, strict=True):
        if file is not None and file != -1 and first.setdefault(file, name) != name:
            raise UserError(
                f"the images {first[file]!r} and {name!r} are the same file, {file}",
                "name each image once: merge their labels, or write the names as the files are called",
            )


def group_copies(paths: Sequence[str]) -> NDArray[np.int64]:
    """The group of each file (N,): files with the same bytes are in one; a missing file is a group of its own."""
    group = np.arange(len(paths))
    for same_size in _candidates(range(len(paths)), lambda number: os.stat(paths[number]).st_size):
        for same_ends in _candidates(same_size, lambda number: _ends_digest(paths[number])):
            for copies in _candidates(same_ends, lambda number: _full_digest(paths[number])):
                group[copies] = copies[0]
    return group


def digest_contents(paths: Sequence[str]) -> str:
    """Return a digest of the beginning and end of each file."""
    return digest_files(paths, _ends_digest)


def digest_files(paths: Sequence[str], state: Callable[[str], bytes]) -> str:
    """Return a digest of the state of some files; a missing file has one too."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            digest.update(state(path) + b"\n")
        except OSError:
            digest.update(b"missing\n")
    return digest.hexdigest()[:16]


def content_digest(data: bytes) -> int:
    """A 64-bit digest of the bytes of an image; never 0, which stands for an image that was not read."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def _ends_digest(path: str) -> bytes:
    """A hash of the size, the beginning and the end of a file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_END_BYTES)
        file.seek(max(size - _END_BYTES, len(head)))
        return hashlib.blake2b(head + file.read(_END_BYTES), digest_size=16, salt=size.to_bytes(8, "little")).digest()


def _full_digest(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _candidates(numbers: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """The lists of numbers with the same key, if they have two or more; a number without a file is left out."""
    by_key: dict[Hashable, list[int]] = {}
    for number in numbers:
        try:
            by_key.setdefault(key(number), []).append(number)
        except OSError:
            continue
    return [same for same in by_key.values() if len(same) > 1]
