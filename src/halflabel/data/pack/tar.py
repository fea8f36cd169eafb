"""Writing WebDataset tars: a file with the same content has the same bytes, whenever it is written."""

from __future__ import annotations

import tarfile
from typing import IO


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
