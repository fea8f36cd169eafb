"""Reading packs: damage, versions, and image names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pack_examples import UNCHANGED, VIEWS, N, image_of, packed_up, pixels, pixels_of, write_photos
from PIL import Image

from halflabel.errors import UserError
from halflabel.images.decode import BadImage, find_images, locate_images, read_image, split_suffixes
from halflabel.images.pack.read import (
    PackSettings,
    data_file_name,
    find_packed_image,
    is_pack,
    open_pack,
    read_manifest,
)
from halflabel.images.pack.source import PackedImages
from halflabel.images.pack.write import pack_images
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table


def test_damage_affects_only_the_damaged_images(tmp_path: Path) -> None:
    shards = packed_up(write_photos(tmp_path / "a"), shard_bytes=6000)
    last = int(shards.index["shard"].max())
    inside = int(shards.index["offset"][2]) + 9
    with open(shards.folder / data_file_name(0), "rb+") as file:
        file.seek(inside)
        byte = file.read(1)
        file.seek(inside)
        file.write(bytes([byte[0] ^ 1]))
    with open(shards.folder / data_file_name(last), "rb+") as file:
        file.truncate(int(shards.index["offset"][-1]) + 5)
    (shards.folder / data_file_name(1)).unlink()
    faults = {}
    for number in range(N):
        try:
            assert np.array_equal(image_of(shards, number).permute(1, 2, 0).numpy(), pixels_of(shards, number))
        except BadImage as bad:
            faults[number] = bad.reason
    missing = np.flatnonzero(shards.index["shard"] == 1).tolist()
    assert sorted(faults) == sorted({2, *missing, N - 1})
    assert "checksum" in faults[2]
    assert faults[N - 1] == "truncated"
    assert "No such file" in faults[missing[0]]
    source = PackedImages(shards, np.arange(N), Names.numbered(N), VIEWS, max_bad=1.0)
    ((actual, _),) = source.fetch([np.arange(N)], ("plain",))
    assert sorted(set(range(N)) - set(actual.tolist())) == sorted(faults)
    assert {row[2] for row in source.quarantine.rows} == set(faults.values())


def test_a_damaged_index_or_another_version_is_refused(tmp_path: Path) -> None:
    shards = packed_up(write_photos(tmp_path / "a"))
    index = shards.folder / "index.arrow"
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 4
    index.write_bytes(bytes(data))
    manifest = json.loads((shards.folder / "pack.json").read_text())
    damaged = tmp_path / "other"
    shutil.copytree(shards.folder, damaged)
    with pytest.raises(UserError, match=r"damaged.*pack the images again"):
        open_pack(damaged)
    (damaged / "pack.json").write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(UserError, match="version 99"):
        open_pack(damaged)
    index.unlink()
    shutil.copytree(shards.folder, tmp_path / "third")
    with pytest.raises(UserError, match="cannot be read"):
        open_pack(tmp_path / "third")
    (damaged / "pack.json").write_text('{"format": "something else"}')
    assert open_pack(damaged).files == [data_file_name(0)]  # tars that others may have written
    (damaged / data_file_name(0)).unlink()
    assert not is_pack(damaged)
    with pytest.raises(UserError, match="not a pack"):
        open_pack(damaged)
    with pytest.raises(UserError, match="not a folder"):
        open_pack(tmp_path / "nowhere")


def mixed_folder(folder: Path) -> Path:
    for name in ("1.png", "2.JPG", "2.png", "a/3.jpg", "a/4.png", "b/4.png", "b/c.v2.jpeg", "odd.name.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(len(name))).save(folder / name)
    return folder


IDS = ["1", "1.png", "1.jpg", "2", "2.png", "2.JPG", "3", "a/3", "a/3.png", "4", "a/4", "b/c.v2", "c.v2", "odd.name"]


IDS += ["images/1.png", "images/a/3", "x/images/1", "./1.png", "a\\3.jpg", "../1.png", "/1.png", "", "a", "a/", "none"]


def test_ids_are_found_as_in_the_folder(tmp_path: Path) -> None:
    folder = mixed_folder(tmp_path / "x" / "images")
    pack_images(folder, tmp_path / "p", UNCHANGED)
    out = tmp_path / "p"
    # One at a time: two ids of one file are refused together.
    in_folder, in_pack = ([locate_images([name], place)[0] for name in IDS] for place in (folder, out))
    expected = [None if path is None else path.relative_to(folder) for path in in_folder]
    actual = [None if path is None else path.relative_to(out) for path in in_pack]
    assert actual == expected
    assert sum(path is not None for path in expected) > 12
    assert [path.relative_to(out) for path in find_images(out)] == [p.relative_to(folder) for p in find_images(folder)]
    shards = open_pack(out)
    for path in find_images(out):
        assert shards.name(shards.numbers[path.relative_to(out).as_posix()]) == path.relative_to(out).as_posix()
    assert find_packed_image(out / "a" / "3.jpg") is not None
    assert find_packed_image(out / "a" / "9.jpg") is None
    assert find_packed_image(folder / "a" / "9.jpg") is None
    with pytest.raises(BadImage, match="no such file"):
        read_image(out / "a" / "9.jpg")


@given(
    st.lists(
        st.text("aB/._é\n", min_size=1, max_size=6).flatmap(
            lambda text: st.sampled_from(["", ".jpg", ".PNG", ".jpeg", ".txt", ".jpe"]).map(lambda end: text + end)
        )
    )
)
def test_endings_of_a_column_equal_those_of_each_name(names: list[str]) -> None:
    from halflabel.images.decode import _RANK, _split

    bases, rank = split_suffixes(pa.array(names, pa.large_string()))
    assert bases.to_pylist() == [_split(name)[0] for name in names]
    assert rank.tolist() == [_RANK.get(_split(name)[1], len(_RANK)) for name in names]


def labelled(*images: str) -> Labels:
    return Labels.from_table(Table.from_dense(np.ones((len(images), 1), np.int8), images, ["dog"]))


def test_only_labelled_images_are_packed_each_once(tmp_path: Path) -> None:
    folder = mixed_folder(tmp_path / "a")
    manifest = pack_images(folder, tmp_path / "p", UNCHANGED, labels=labelled("3", "1", "gone"))
    with pytest.raises(UserError, match="same file"):
        pack_images(folder, tmp_path / "twice", UNCHANGED, labels=labelled("3", "a/3.jpg"))
    assert manifest["images"] == 2
    assert sorted(open_pack(tmp_path / "p").names.to_pylist()) == ["1.png", "a/3.jpg"]
    # A file without an ending is found by its whole name, here as there.
    shutil.copy(folder / "1.png", folder / "bare")
    pack_images(folder, tmp_path / "r", UNCHANGED, labels=labelled("bare", "1"))
    for place in (folder, tmp_path / "r"):
        assert [path is not None for path in locate_images(["bare", "bare.jpg", "1.jpg"], place)] == [True, False, True]
    with pytest.raises(UserError, match="none of the 1 images"):
        pack_images(folder, tmp_path / "q", UNCHANGED, labels=labelled("gone"))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", 4)
    pack_images(tmp_path / "photos", tmp_path / "pack", PackSettings(size=12))
    (tmp_path / "pack" / "pack.json").unlink()
    os.mkfifo(tmp_path / "pack" / "pack.json")
    assert read_manifest(tmp_path / "pack") is None
