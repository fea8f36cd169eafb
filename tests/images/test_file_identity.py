"""Ids of one file are refused, copies are grouped, in folders and in packs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halflabel.errors import UserError
from halflabel.images.decode import locate_images
from halflabel.images.file_identity import group_copies
from halflabel.images.pack.read import PackSettings, open_pack
from halflabel.images.pack.write import pack_images


def photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


@pytest.mark.parametrize("twin", ["./1.jpg", "photos/1.jpg", "1.png", "1", ".\\1.jpg", "1.JPG"])
def test_two_ids_of_one_file_are_refused(tmp_path: Path, twin: str) -> None:
    folder = tmp_path / "photos"
    photo(folder / "1.jpg", 1)
    photo(folder / "2.jpg", 2)
    assert locate_images(["1.jpg", "2.jpg", "3.jpg", "4.jpg"], folder)[2:] == [None, None]
    with pytest.raises(UserError, match=r"'1\.jpg' and .* are the same file"):
        locate_images(["1.jpg", "2.jpg", twin], folder)
    pack_images(folder, tmp_path / "pack", PackSettings())
    assert open_pack(tmp_path / "pack").find(["1.jpg", "2.jpg", "3.jpg"]).tolist()[2] == -1
    with pytest.raises(UserError, match="are the same file"):
        open_pack(tmp_path / "pack").find(["1.jpg", "2.jpg", twin])


def test_files_with_the_same_bytes_are_one_group(tmp_path: Path) -> None:
    contents = [b"a" * 9000, b"b" + b"a" * 8999, b"a" * 9000, b"a" * 4500 + b"b" + b"a" * 4499, b"a", b"a" * 9000]
    paths = [str(tmp_path / str(number)) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        Path(path).write_bytes(content)
    os.link(paths[1], tmp_path / "link")
    groups = group_copies([*paths, str(tmp_path / "link"), str(tmp_path / "missing"), str(tmp_path / "lost")])
    assert groups.tolist() == [0, 1, 0, 3, 4, 0, 1, 7, 8]
