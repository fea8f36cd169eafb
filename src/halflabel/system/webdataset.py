"""WebDataset folders: tar files in which KEY.jpg, KEY.json, … are the parts of one sample.

Only headers of tars are read here; `images/pack` reads the images and `labels/formats/webdataset.py` the labels.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.system.files import is_utf8

_KEY = re.compile(r"((?:.*/|)[^.]+)\.([^/]*)", re.DOTALL)  # the rule of the package webdataset
_FOREIGN = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".dcm")  # images beside the tars: an ordinary folder


class Members(NamedTuple):
    """The files in the tars of a folder."""

    tars: list[Path]
    names: Any  # pyarrow strings
    tar: NDArray[np.uint32]  # number of the tar of each file
    offset: NDArray[np.uint64]
    length: NDArray[np.uint32]


def split_key(name: str) -> tuple[str, str]:
    """`a/cat.seg.PNG` -> (`a/cat`, `seg.png`): the name of a sample ends at the first dot of the file name."""
    match = _KEY.fullmatch(name)
    return (match[1], match[2].lower()) if match else (name, "")


def tar_files(folder: str | Path) -> list[Path]:
    """Return the tars of a WebDataset folder, sorted; empty if it also holds images or folders, or is not a folder."""
    tars = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name.lower()
                if name.startswith("."):
                    continue
                if name.endswith(_FOREIGN) or entry.is_dir():
                    return []
                if name.endswith(".tar") and entry.is_file():
                    tars.append(Path(entry.path))
    except OSError:
        return []
    return sorted(tars)


def list_members(tars: list[Path]) -> Members:
    """List the files in tars, from their headers alone; cached until a tar changes.

    If two tars hold a file of the same name, the name of each file begins with that of its tar: `00003/12.jpg`. Hidden
    files are left out.
    """
    return _list_members(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in tars))


@contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as tar:
            yield tar
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(f"{path} is not a complete tar ({error})", "copy it again; unpack .tar.gz") from None


@lru_cache(maxsize=4)
def _list_members(tars: tuple[tuple[Path, int, int], ...]) -> Members:
    names, numbers, offsets, lengths = [], [], [], []
    for number, (path, size, _) in enumerate(tars):
        in_tar: list[str] = []
        end = 0
        with _open_tar(path) as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # a list of millions otherwise
                end = member.offset_data + member.size
                parts = member.name.removeprefix("./").split("/")
                is_hidden = any(part.startswith(".") or not part for part in parts)
                if not member.isreg() or is_hidden or not is_utf8(member.name):
                    continue
                in_tar.append("/".join(parts))
                numbers.append(number)
                offsets.append(member.offset_data)
                lengths.append(member.size)
            if size < end + tarfile.BLOCKSIZE:  # cut off between two files, which tarfile takes for the end
                raise tarfile.ReadError("its end is missing")
        names.append(pa.array(in_tar, pa.large_string()))
    column = pa.concat_arrays(names)
    if len(pc.unique(column)) < len(column):
        prefixes = pa.array([f"{path.stem}/" for path, _, _ in tars], pa.large_string()).take(pa.array(numbers))
        column = pc.binary_join_element_wise(prefixes, column, pa.scalar("", pa.large_string()))
    return Members(
        [path for path, _, _ in tars],
        column,
        np.array(numbers, np.uint32),
        np.array(offsets, np.uint64),
        np.array(lengths, np.uint32),
    )


def append_to_tar(tar: IO[bytes], name: str, data: bytes) -> int:
    """Append a file and return where its bytes begin."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    header = info.tobuf(tarfile.PAX_FORMAT)
    offset = tar.tell() + len(header)
    tar.write(header + data + bytes(-len(data) % tarfile.BLOCKSIZE))
    return offset


def end_tar(tar: IO[bytes]) -> None:
    tar.write(bytes(2 * tarfile.BLOCKSIZE))
