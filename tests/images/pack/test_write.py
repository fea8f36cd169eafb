"""Writing packs: sizes, interruptions, and images that cannot be read."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pack_examples import UNCHANGED, N, image_of, packed_up, pixels, write_photos
from PIL import Image

from halflabel.errors import UserError
from halflabel.images.decode import list_images, read_image
from halflabel.images.pack import write as packing
from halflabel.images.pack.read import (
    PackSettings,
    data_file_name,
    open_pack,
)
from halflabel.images.pack.write import encode_image, pack_images


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_pack_can_be_read_without_halflabel(tmp_path: Path) -> None:
    """Read back with nothing but Arrow, JSON and Pillow."""
    shards = packed_up(write_photos(tmp_path / "a"), shard_bytes=4000)
    manifest = json.loads((shards.folder / "pack.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["images"]) == ("halflabel pack", 2, N)
    with pa.ipc.open_file(shards.folder / "index.arrow") as file:
        rows = file.read_all().to_pylist()
    assert sorted(row["name"] for row in rows) == [f"{number:02d}.jpg" for number in range(N)]
    assert {row["shard"] for row in rows} == set(range(manifest["shards"]))
    assert manifest["shards"] > 2
    for row in rows:
        data = (shards.folder / data_file_name(row["shard"])).read_bytes()[row["offset"] :][: row["length"]]
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels(int(row["name"][:2])))
        assert (row["width"], row["height"]) == (28, 20)
    sizes = sum((shards.folder / data_file_name(number)).stat().st_size for number in range(manifest["shards"]))
    assert manifest["bytes"] == sum(row["length"] for row in rows) < sizes
    assert sorted(files_of(shards.folder)) == sorted(
        [data_file_name(number) for number in range(manifest["shards"])]
        + ["index.arrow", "pack.json", "bad_images.csv"]
    )


def test_sizes(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 3, high=40, wide=60)
    shards = packed_up(folder, PackSettings(size=20))
    for number in range(3):
        image = image_of(shards, number)
        assert image.shape == (3, 20, 30)
        assert image.dtype == torch.uint8
        expected = np.asarray(
            Image.fromarray(pixels(int(shards.name(number)[:2]), 40, 60)).resize(
                image.shape[:0:-1], Image.Resampling.BILINEAR
            )
        )
        off = np.abs(image.permute(1, 2, 0).numpy().astype(int) - expected.astype(int))
        assert off.mean() < 12
        # `read_image` gives the same.
        assert torch.equal(read_image(shards.folder / shards.name(number)), image)


def test_small_images_are_not_enlarged_and_small_jpegs_are_kept_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels(0)).save(path, quality=70)
    assert encode_image(path, PackSettings(size=24)) == (path.read_bytes(), 28, 20)
    assert encode_image(path, PackSettings(size=19))[1:] == (27, 19)
    rotated = Image.Exif()
    rotated[0x0112] = 6
    cases: tuple[dict[str, Any], ...] = ({"exif": rotated}, {"progressive": True})
    for more in cases:  # slow to decode, or rotated by EXIF: encoded again
        Image.fromarray(pixels(0)).save(path, quality=70, **more)
        data, wide, high = encode_image(path, PackSettings(size=24))
        encoded = Image.open(io.BytesIO(data))
        assert data != path.read_bytes()
        assert encoded.size == (wide, high) == ((20, 28) if "exif" in more else (28, 20))
        assert not encoded.getexif()
        assert not encoded.info.get("progressive")
    Image.fromarray(pixels(0)).convert("CMYK").save(path)
    assert Image.open(io.BytesIO(encode_image(path, PackSettings(size=24))[0])).mode == "RGB"


def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 40)
    for workers in (0, 2):
        pack_images(folder, tmp_path / f"{workers}", PackSettings(size=12), workers=workers, shard_bytes=3000)
    assert files_of(tmp_path / "0") == files_of(tmp_path / "2")


@pytest.mark.parametrize("after", [0, 1, 17, 33, 39])
def test_an_interrupted_pack_is_continued_with_the_same_result(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_photos(tmp_path / "a", 40)
    (folder / "05.jpg").write_bytes(b"no picture")
    options: dict[str, Any] = {"shard_bytes": 3000, "max_bad": 0.1}
    pack_images(folder, tmp_path / "uninterrupted", PackSettings(size=12), **options)
    encoded: list[str] = []

    def interrupted(path: Path, *rest: Any) -> Any:
        if len(encoded) == after:
            raise KeyboardInterrupt
        encoded.append(path.name)
        return encode_image(path, *rest)

    monkeypatch.setattr(packing, "encode_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack_images(folder, tmp_path / "b", PackSettings(size=12), **options)
    with pytest.raises(UserError, match=r"not finished.*continue it"):
        open_pack(tmp_path / "b")
    whole_shards = len(list((tmp_path / "b").glob("*.arrow")))
    encoded_again: list[str] = []
    monkeypatch.setattr(
        packing, "encode_image", lambda path, *rest: (encoded_again.append(path.name), encode_image(path, *rest))[1]
    )
    pack_images(folder, tmp_path / "b", PackSettings(size=12), **options)
    assert files_of(tmp_path / "b") == files_of(tmp_path / "uninterrupted")
    # Images in finished shards are not encoded again.
    assert (len(encoded_again) < 40) == (whole_shards > 0)
    assert after < 33 or whole_shards > 0


def test_a_shard_that_is_cut_off_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "a", 40)
    pack_images(folder, tmp_path / "uninterrupted", PackSettings(size=12), shard_bytes=3000)
    monkeypatch.setattr(packing, "_finish", lambda *_: {})
    pack_images(folder, tmp_path / "b", PackSettings(size=12), shard_bytes=3000)
    monkeypatch.undo()
    with open(tmp_path / "b" / data_file_name(1), "rb+") as file:
        file.truncate(100)
    pack_images(folder, tmp_path / "b", PackSettings(size=12), shard_bytes=3000)
    assert files_of(tmp_path / "b") == files_of(tmp_path / "uninterrupted")


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a")
    shards = packed_up(folder)
    before = files_of(shards.folder)
    assert pack_images(folder, shards.folder, UNCHANGED)["was_finished"]
    assert files_of(shards.folder) == before
    with pytest.raises(UserError, match=r"holds a pack with another.*force"):
        pack_images(folder, shards.folder, PackSettings(size=10))
    pack_images(folder, shards.folder, PackSettings(size=10), force=True)
    assert image_of(open_pack(shards.folder), 0).shape == (3, 10, 14)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for force in (False, True):
        with pytest.raises(UserError, match="not a pack"):
            pack_images(folder, tmp_path / "mine", UNCHANGED, force=force)
    assert files_of(tmp_path / "mine") == {"letter.txt": b"dear"}
    with pytest.raises(UserError, match="pack already"):
        pack_images(shards.folder, tmp_path / "b", UNCHANGED)
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="no image"):
        pack_images(tmp_path / "none", tmp_path / "b", UNCHANGED)


def test_continuing_with_other_settings_or_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "a")
    monkeypatch.setattr(packing, "_finish", lambda *_: {})
    pack_images(folder, tmp_path / "b", UNCHANGED)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"another size.*force"):
        pack_images(folder, tmp_path / "b", PackSettings(size=25))
    photo = (folder / "00.jpg").read_bytes()
    (folder / "00.jpg").write_bytes((folder / "01.jpg").read_bytes())  # another photo of the same name
    with pytest.raises(UserError, match="another set of images"):
        pack_images(folder, tmp_path / "b", UNCHANGED)
    (folder / "00.jpg").write_bytes(photo)
    pack_images(folder, tmp_path / "b", UNCHANGED)
    (folder / "00.jpg").unlink()
    with pytest.raises(UserError, match="another set of images"):
        pack_images(folder, tmp_path / "b", UNCHANGED)


def test_unreadable_images_are_listed_and_too_many_are_an_error(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a")
    for name in ("03.jpg", "07.jpg"):
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
    (folder / "05.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot be read, over the limit of 20 %.*max_bad"):
        pack_images(folder, tmp_path / "b", UNCHANGED, max_bad=0.2)
    assert (tmp_path / "b" / "bad_images.csv").read_text().count("\n") == 4
    manifest = pack_images(folder, tmp_path / "b", UNCHANGED, max_bad=0.3)
    assert (manifest["images"], manifest["bad"]) == (N - 3, 3)
    rows = list(csv.DictReader((tmp_path / "b" / "bad_images.csv").read_text().splitlines()))
    reasons = {"03.jpg": "truncated", "05.jpg": "empty file", "07.jpg": "truncated"}
    assert {row["image"]: row["reason"] for row in rows} == reasons
    pack = open_pack(tmp_path / "b")
    assert pack.find(["03", "04"]).tolist() == [-1, pack.numbers["04.jpg"]]
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match="none of the images"):
        pack_images(folder, tmp_path / "c", UNCHANGED, max_bad=1.0)


def test_file_names_that_are_not_text_are_bad_images(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 3)
    odd = "caf\udce9.jpg"
    try:
        shutil.copy(folder / "00.jpg", folder / odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    names, bad_names = list_images(folder)
    assert (names.to_pylist(), bad_names) == (["00.jpg", "01.jpg", "02.jpg"], [odd])
    manifest = pack_images(folder, tmp_path / "b", UNCHANGED, max_bad=0.3)
    assert (manifest["images"], manifest["bad"]) == (3, 1)
