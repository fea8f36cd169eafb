"""Packs hold what the folder held, go on after being killed, notice damage, and read the same with any workers."""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halflabel.data.decode import BadImage, find_images, list_images, locate_images, read_image, split_suffixes
from halflabel.data.gpu_views import make_view
from halflabel.data.pack import source as packed
from halflabel.data.pack import write as packing
from halflabel.data.pack.read import (
    Pack,
    PackSettings,
    data_file_name,
    decode_jpegs,
    find_packed_image,
    is_pack,
    open_pack,
)
from halflabel.data.pack.source import DeviceViews, PackedImages, min_source_side, open_packed_images
from halflabel.data.pack.write import encode_image, pack_images
from halflabel.data.sources import Images, Subset, preferred_order
from halflabel.data.views import Plain, Strong, View, Weak, view_keys
from halflabel.errors import UserError
from halflabel.labels.names import Names

VIEWS: dict[str, View] = {"plain": Plain(16), "weak": Weak(16), "strong": Strong(16)}
N = 12
PNG = PackSettings(size=24, store="png")


@pytest.fixture(autouse=True)
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in this process is about power cuts."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


def pixels(number: int, high: int = 20, wide: int = 28) -> np.ndarray:
    """Smooth, so that a JPEG of it is close to it."""
    noise = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize((wide, high), Image.Resampling.BICUBIC))


def write_photos(folder: Path, n: int = N, kind: str = "png", high: int = 20, wide: int = 28) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(n):
        Image.fromarray(pixels(number, high, wide)).save(folder / f"{number:02d}.{kind}")
    return folder


def packed_up(folder: Path, stored: PackSettings = PNG, **more: Any) -> Pack:
    out = folder.with_name(f"{folder.name}.pack")
    pack_images(folder, out, stored, **more)
    return open_pack(out)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_format_is_what_it_says_it_is(tmp_path: Path) -> None:
    """Read back with nothing but Arrow, JSON and Pillow."""
    shards = packed_up(write_photos(tmp_path / "a"), shard_bytes=4000)
    about = json.loads((shards.folder / "pack.json").read_text())
    assert (about["format"], about["version"], about["images"], about["store"]) == ("halflabel pack", 1, N, "png")
    with pa.ipc.open_file(shards.folder / "index.arrow") as file:
        rows = file.read_all().to_pylist()
    assert [row["name"] for row in rows] == [f"{number:02d}.png" for number in range(N)]
    assert {row["shard"] for row in rows} == set(range(about["shards"]))
    assert about["shards"] > 2
    for number, row in enumerate(rows):
        data = (shards.folder / data_file_name(row["shard"])).read_bytes()[row["offset"] :][: row["length"]]
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels(number))
        assert (row["width"], row["height"]) == (28, 20)
    sizes = sum((shards.folder / data_file_name(number)).stat().st_size for number in range(about["shards"]))
    assert sizes == about["bytes"] == sum(row["length"] for row in rows)
    assert sorted(files_of(shards.folder)) == sorted(
        [data_file_name(number) for number in range(about["shards"])] + ["index.arrow", "pack.json", "bad_images.csv"]
    )


def test_the_index_takes_28_bytes_and_the_name() -> None:
    from halflabel.data.pack.read import INDEX_COLUMNS

    assert sum(np.dtype(kind).itemsize for kind in INDEX_COLUMNS.values()) == 28


@pytest.mark.parametrize("store", ["jpeg", "png", "raw"])
@pytest.mark.parametrize("resize", ["short", "squash"])
def test_sizes_and_stores(tmp_path: Path, store: Any, resize: Any) -> None:
    folder = write_photos(tmp_path / "a", 3, high=40, wide=60)
    shards = packed_up(folder, PackSettings(size=20, store=store, resize=resize))
    for number in range(3):
        image = shards.image(number)
        assert image.shape == ((3, 20, 30) if resize == "short" else (3, 20, 20))
        assert image.dtype == torch.uint8
        wanted = np.asarray(
            Image.fromarray(pixels(number, 40, 60)).resize(image.shape[:0:-1], Image.Resampling.BILINEAR)
        )
        off = np.abs(image.permute(1, 2, 0).numpy().astype(int) - wanted.astype(int))
        assert off.max() <= 1 if store != "jpeg" else off.mean() < 12
        # As a file of its own it reads the same.
        assert torch.equal(read_image(shards.folder / shards.name(number)), image)


def test_a_lossless_square_pack_gives_the_plain_view_of_the_folder_bit_for_bit(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 5, high=33, wide=50)
    shards = packed_up(folder, PackSettings(size=16, store="raw", resize="squash"))
    for number, path in enumerate(find_images(folder)):
        assert torch.equal(Plain(16)(shards.image(number)), Plain(16)(read_image(path)))


def test_small_images_are_not_enlarged_and_small_jpegs_are_kept_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels(0)).save(path, quality=70)
    assert encode_image(path, PackSettings(size=24)) == (path.read_bytes(), 28, 20)
    assert encode_image(path, PackSettings(size=19))[1:] == (27, 19)
    turned = Image.Exif()
    turned[0x0112] = 6
    cases: tuple[dict[str, Any], ...] = ({"exif": turned}, {"progressive": True})
    for more in cases:  # slow to decode, or not as it looks: encoded anew
        Image.fromarray(pixels(0)).save(path, quality=70, **more)
        data, wide, high = encode_image(path, PackSettings(size=24))
        again = Image.open(io.BytesIO(data))
        assert data != path.read_bytes()
        assert again.size == (wide, high) == ((20, 28) if "exif" in more else (28, 20))
        assert not again.getexif()
        assert not again.info.get("progressive")
    Image.fromarray(pixels(0)).convert("CMYK").save(path)
    assert Image.open(io.BytesIO(encode_image(path, PackSettings(size=24))[0])).mode == "RGB"


def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 40)
    for workers in (0, 2):
        pack_images(folder, tmp_path / f"{workers}", PackSettings(size=12), workers=workers, shard_bytes=3000)
    assert files_of(tmp_path / "0") == files_of(tmp_path / "2")


@pytest.mark.parametrize("after", [0, 1, 17, 33, 39])
def test_a_pack_that_was_killed_goes_on_and_ends_the_same(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_photos(tmp_path / "a", 40)
    (folder / "05.png").write_bytes(b"no picture")
    how: dict[str, Any] = {"shard_bytes": 3000, "max_bad": 0.1}
    pack_images(folder, tmp_path / "whole", PackSettings(size=12), **how)
    seen: list[str] = []

    def dying(path: Path, *rest: Any) -> Any:
        if len(seen) == after:
            raise KeyboardInterrupt
        seen.append(path.name)
        return encode_image(path, *rest)

    monkeypatch.setattr(packing, "encode_image", dying)
    with pytest.raises(KeyboardInterrupt):
        pack_images(folder, tmp_path / "b", PackSettings(size=12), **how)
    with pytest.raises(UserError, match=r"not finished.*continue it"):
        open_pack(tmp_path / "b")
    whole_shards = len(list((tmp_path / "b").glob("*.arrow")))
    again: list[str] = []
    monkeypatch.setattr(
        packing, "encode_image", lambda path, *rest: (again.append(path.name), encode_image(path, *rest))[1]
    )
    pack_images(folder, tmp_path / "b", PackSettings(size=12), **how)
    assert files_of(tmp_path / "b") == files_of(tmp_path / "whole")
    # What lay in whole shards was not looked at again.
    assert (len(again) < 40) == (whole_shards > 0)
    assert after < 33 or whole_shards > 0


def test_a_shard_that_is_cut_off_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "a", 40)
    pack_images(folder, tmp_path / "whole", PackSettings(size=12), shard_bytes=3000)
    monkeypatch.setattr(packing, "_finish", lambda *given: {})
    pack_images(folder, tmp_path / "b", PackSettings(size=12), shard_bytes=3000)
    monkeypatch.undo()
    with open(tmp_path / "b" / data_file_name(1), "rb+") as file:
        file.truncate(100)
    pack_images(folder, tmp_path / "b", PackSettings(size=12), shard_bytes=3000)
    assert files_of(tmp_path / "b") == files_of(tmp_path / "whole")


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a")
    shards = packed_up(folder)
    with pytest.raises(UserError, match=r"already holds a pack.*force"):
        pack_images(folder, shards.folder, PNG)
    pack_images(folder, shards.folder, PackSettings(size=10, store="png"), force=True)
    assert open_pack(shards.folder).image(0).shape == (3, 10, 14)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for force in (False, True):
        with pytest.raises(UserError, match="not a pack"):
            pack_images(folder, tmp_path / "mine", PNG, force=force)
    assert files_of(tmp_path / "mine") == {"letter.txt": b"dear"}
    with pytest.raises(UserError, match="pack already"):
        pack_images(shards.folder, tmp_path / "b", PNG)
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="no image"):
        pack_images(tmp_path / "none", tmp_path / "b", PNG)


def test_going_on_with_other_settings_or_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "a")
    monkeypatch.setattr(packing, "_finish", lambda *given: {})
    pack_images(folder, tmp_path / "b", PNG)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"another size.*force"):
        pack_images(folder, tmp_path / "b", PackSettings(size=25, store="png"))
    (folder / "00.png").unlink()
    with pytest.raises(UserError, match="another set of images"):
        pack_images(folder, tmp_path / "b", PNG)


def test_unreadable_images_are_listed_and_too_many_are_an_error(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a")
    for name in ("03.png", "07.png"):
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
    (folder / "05.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot be read, over the limit of 20 %.*max_bad"):
        pack_images(folder, tmp_path / "b", PNG, max_bad=0.2)
    assert (tmp_path / "b" / "bad_images.csv").read_text().count("\n") == 4
    about = pack_images(folder, tmp_path / "b", PNG, max_bad=0.3)
    assert (about["images"], about["bad"]) == (N - 3, 3)
    rows = list(csv.DictReader((tmp_path / "b" / "bad_images.csv").read_text().splitlines()))
    assert [(row["image"], row["reason"]) for row in rows] == [
        ("03.png", "truncated"),
        ("05.png", "empty file"),
        ("07.png", "truncated"),
    ]
    assert open_pack(tmp_path / "b").find(["03", "04"]).tolist() == [-1, 3]
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match="none of the images"):
        pack_images(folder, tmp_path / "c", PNG, max_bad=1.0)


def test_names_that_are_no_text_are_bad_images(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 3)
    odd = "caf\udce9.png"
    try:
        shutil.copy(folder / "00.png", folder / odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    names, others = list_images(folder)
    assert (names.to_pylist(), others) == (["00.png", "01.png", "02.png"], [odd])
    about = pack_images(folder, tmp_path / "b", PNG, max_bad=0.3)
    assert (about["images"], about["bad"]) == (3, 1)


def test_damage_is_an_unreadable_image_and_no_other(tmp_path: Path) -> None:
    shards = packed_up(write_photos(tmp_path / "a"), shard_bytes=4000)
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
            assert np.array_equal(shards.image(number).permute(1, 2, 0).numpy(), pixels(number))
        except BadImage as bad:
            faults[number] = bad.reason
    gone = np.flatnonzero(shards.index["shard"] == 1).tolist()
    assert sorted(faults) == sorted({2, *gone, N - 1})
    assert "checksum" in faults[2]
    assert faults[N - 1] == "truncated"
    assert "No such file" in faults[gone[0]]
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
    about = json.loads((shards.folder / "pack.json").read_text())
    other = tmp_path / "other"
    shutil.copytree(shards.folder, other)
    with pytest.raises(UserError, match=r"damaged.*pack the images again"):
        open_pack(other)
    (other / "pack.json").write_text(json.dumps({**about, "version": 99}))
    with pytest.raises(UserError, match="version 99"):
        open_pack(other)
    index.unlink()
    shutil.copytree(shards.folder, tmp_path / "third")
    with pytest.raises(UserError, match="cannot be read"):
        open_pack(tmp_path / "third")
    (other / "pack.json").write_text('{"format": "something else"}')
    assert not is_pack(other)
    with pytest.raises(UserError, match="not a pack"):
        open_pack(other)
    with pytest.raises(UserError, match="not a pack"):
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
    pack_images(folder, tmp_path / "p", PNG)
    out = tmp_path / "p"
    wanted = [None if path is None else path.relative_to(folder) for path in locate_images(IDS, folder)]
    actual = [None if path is None else path.relative_to(out) for path in locate_images(IDS, out)]
    assert actual == wanted
    assert sum(path is not None for path in wanted) > 12
    assert [path.relative_to(out) for path in find_images(out)] == [p.relative_to(folder) for p in find_images(folder)]
    shards = open_pack(out)
    for path in find_images(out):
        assert shards.name(shards.number(path.relative_to(out).as_posix())) == path.relative_to(out).as_posix()
    assert shards.number("none.png") == -1
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
def test_endings_of_a_column_are_those_of_each_name(names: list[str]) -> None:
    from halflabel.data.decode import _RANK, _split

    bases, rank = split_suffixes(pa.array(names, pa.large_string()))
    assert bases.to_pylist() == [_split(name)[0] for name in names]
    assert rank.tolist() == [_RANK.get(_split(name)[1], len(_RANK)) for name in names]


def test_only_labelled_images_are_packed_each_once(tmp_path: Path) -> None:
    folder = mixed_folder(tmp_path / "a")
    about = pack_images(folder, tmp_path / "p", PNG, ids=["3", "a/3.jpg", "1", "gone"])
    assert about["images"] == 2
    assert open_pack(tmp_path / "p").names.to_pylist() == ["1.png", "a/3.jpg"]
    # A file without an ending is found by its whole name, here as there.
    shutil.copy(folder / "1.png", folder / "bare")
    pack_images(folder, tmp_path / "r", PNG, ids=["bare", "1"])
    for place in (folder, tmp_path / "r"):
        assert [path is not None for path in locate_images(["bare", "bare.jpg", "1.jpg"], place)] == [True, False, True]
    with pytest.raises(UserError, match="none of the 1 images"):
        pack_images(folder, tmp_path / "q", PNG, ids=["gone"])


def sources(tmp_path: Path, workers: int = 0, **more: Any) -> tuple[Images, PackedImages]:
    folder = write_photos(tmp_path / "a")
    names = Names(f"{number:02d}" for number in reversed(range(N)))
    files = [path for path in locate_images(list(names), folder) if path is not None]
    shards = packed_up(folder, **more)
    return Images(files, names, VIEWS), open_packed_images(names, shards.folder, VIEWS, workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_lossless_pack_gives_the_views_of_the_folder_with_any_workers(tmp_path: Path, workers: int) -> None:
    folder, pack = sources(tmp_path, workers)
    plan = [np.array([8, 1, 3]), np.array([0, 4]), np.array([11])]
    for epoch, views in ((1, ("weak", "strong")), (2, ("plain",))):
        wanted, actual = (list(source.fetch(plan, views, seed=1, epoch=epoch)) for source in (folder, pack))
        assert len(wanted) == len(actual) == 3
        for one, two in zip(wanted, actual, strict=True):
            assert one.images.tolist() == two.images.tolist()
            assert all(torch.equal(a, b) for a, b in zip(one.views, two.views, strict=True))


def test_an_image_that_is_not_in_the_pack_is_unreadable(tmp_path: Path) -> None:
    shards = packed_up(write_photos(tmp_path / "a", 3))
    source = open_packed_images(Names(["01", "gone", "02.png"]), shards.folder, VIEWS, max_bad=0.5)
    ((actual, _),) = source.fetch([np.arange(3)], ("plain",))
    assert actual.tolist() == [0, 2]
    assert source.quarantine.rows == [("gone", str(shards.folder / "gone"), "not in the pack")]
    assert source.paths[0] == str(shards.folder / "01")
    with pytest.raises(UserError, match=r"none of the 1 images.*'gone'"):
        open_packed_images(Names(["gone"]), shards.folder, VIEWS)


def test_what_a_pack_cannot_give_is_said(tmp_path: Path) -> None:
    shards = packed_up(write_photos(tmp_path / "a", 3), PackSettings(size=16, resize="squash"))
    with pytest.raises(UserError, match=r"16 px, but 32 px are needed.*size=16"):
        open_packed_images(Names(["01"]), shards.folder, {"plain": Plain(32)})
    with pytest.raises(UserError, match=r"squashed.*resize=.squash."):
        open_packed_images(Names(["01"]), shards.folder, {"plain": Plain(16, "crop")})


def test_large_jpegs_are_decoded_at_a_fraction_where_no_view_needs_more(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 2, "jpg", 160, 200)
    shards = packed_up(folder, PackSettings(size=160))
    assert [tuple(shards.image(0, min_side=least).shape[1:]) for least in (0, 81, 80, 41, 40, 20, 3)] == [
        (160, 200),
        (160, 200),
        (80, 100),
        (80, 100),
        (40, 50),
        (20, 25),
        (20, 25),
    ]
    assert [min_source_side([view]) for view in (Plain(28), Plain(28, "crop"), Weak(28, least=0.25))] == [28, 32, 56]
    assert min_source_side([Plain(28), Strong(28, least=0.25)]) == 56
    full, small = (Plain(40)(shards.image(0, min_side=least)).float() for least in (0, 40))
    assert (full - small).abs().mean() < 4

    class Own:
        size = 8

        def __call__(self, image: torch.Tensor, key: int) -> torch.Tensor:
            return image

        def describe(self) -> str:
            return ""

    assert min_source_side([Plain(8), Own()]) == 0


def test_without_torchvisions_decoder_pillow_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = packed_up(write_photos(tmp_path / "a", 3, "jpg", 50, 70), PackSettings(size=40))
    quick = [shards.image(number) for number in range(3)]
    monkeypatch.setattr("halflabel.data.pack.read.decode_jpegs", lambda encoded: None)
    assert all(torch.equal(shards.image(number), image) for number, image in enumerate(quick))
    assert decode_jpegs([b"\xff\xd8\xff and no more"]) is None
    if not torch.cuda.is_available():
        assert decode_jpegs([shards.read(0)], "cuda") is None


def test_the_full_shuffle_is_left_to_whoever_plans(tmp_path: Path) -> None:
    _, pack = sources(tmp_path)
    assert pack.order(0, 1) is None
    assert preferred_order(Subset(pack, np.arange(3)), 0, 1) is None
    assert preferred_order(sources(tmp_path / "x")[0], 0, 1) is None


def in_blocks(count: int) -> PackedImages:
    """A pack in name alone: the order asks for no image."""
    shards = Pack(Path(), pa.array([]), {}, PackSettings(shuffle="blocks"))
    at = np.random.default_rng(0).permutation(count)
    return PackedImages(shards, at, Names.numbered(count), VIEWS)


def test_blocks_are_read_in_turn_and_mixed_within_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_BLOCK", 10)
    monkeypatch.setattr(packed, "_WINDOW", 3)
    pack = in_blocks(200)
    order = pack.order(3, 1)
    assert order is not None
    assert sorted(order.tolist()) == list(range(200))
    # The slow way to say it: each run of 30 images is three whole blocks, in an order that mixes them.
    mixed = 0
    for first in range(0, 200, 30):
        places = pack.positions[order[first : first + 30]]
        blocks = sorted(set((places // 10).tolist()))
        assert len(blocks) == len(places) // 10
        assert sorted(places.tolist()) == [10 * block + place for block in blocks for place in range(10)]
        mixed += len(set((places[:10] // 10).tolist())) > 1
    assert mixed >= 5
    windows = [frozenset((pack.positions[order[first : first + 30]] // 10).tolist()) for first in range(0, 200, 30)]
    assert windows != sorted(windows, key=min)
    # A function of seed and epoch.
    assert np.array_equal(order, in_blocks(200).order(3, 1))
    for other in ((3, 2), (4, 1)):
        assert not np.array_equal(order, pack.order(*other))
    # A part is read in the order of the whole.
    index = np.random.default_rng(1).permutation(200)[:50]
    part = preferred_order(Subset(pack, index), 3, 1)
    assert part is not None
    assert index[part].tolist() == [number for number in order.tolist() if number in set(index.tolist())]


def test_training_follows_the_order_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from halflabel.labels.table import LabelTable
    from halflabel.methods.base import recipe
    from halflabel.models.backbones import build_backbone
    from halflabel.models.heads import Linear, Model
    from halflabel.training.config import Settings
    from halflabel.training.loop import fit

    monkeypatch.setattr(packed, "_BLOCK", 3)
    monkeypatch.setattr(packed, "_WINDOW", 1)
    shards = packed_up(write_photos(tmp_path / "a"), PackSettings(size=24, shuffle="blocks"))
    pack = open_packed_images(Names(f"{number:02d}" for number in range(N)), shards.folder, VIEWS)
    asked: list[list[int]] = []
    fetch = PackedImages.fetch

    def watched(self: PackedImages, plan: Any, views: Any, **more: Any) -> Iterator[Any]:
        asked.append(np.concatenate(plan).tolist())
        return fetch(self, plan, views, **more)

    monkeypatch.setattr(PackedImages, "fetch", watched)
    table = LabelTable.from_dense(np.ones((N, 2), np.int8))
    backbone = build_backbone("tiny")
    model = Model(backbone, Linear(backbone.channels, 2))
    fit(model, recipe("bce").make(), Subset(pack, np.arange(N)), table, Settings(epochs=2, batch_size=5, device="cpu"))
    assert asked == [np.asarray(pack.order(0, epoch)).tolist() for epoch in (1, 2)]
    # PackSettings in another order than that of the names: neighbours are not alike.
    assert pack.positions.tolist() != sorted(pack.positions.tolist())


def test_reading_ahead_is_a_hint_of_what_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pack = sources(tmp_path, shard_bytes=2500)
    reports: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "os.posix_fadvise", lambda file, first, length, advice: reports.append((first, length)), raising=False
    )
    pack.pack.read_ahead(np.array([5, 3, 4]))
    inside = pack.pack.index["shard"][3:6]
    assert len(reports) == len(set(inside.tolist()))
    assert sum(length for _, length in reports) == int(pack.pack.index["length"][3:6].sum())
    monkeypatch.setattr(packed, "_AHEAD", 4)
    expected: list[list[int]] = []
    monkeypatch.setattr(Pack, "read_ahead", lambda self, numbers: expected.append(numbers.tolist()))
    plan = [np.array([first, first + 1]) for first in range(0, N, 2)]
    taken = []
    for batch in pack.fetch(plan, ("plain",)):
        taken += pack.positions[batch.images].tolist()
        assert set(taken) <= set(chain(*expected))
    # Each image is told of once, two batches before it is asked for at the latest.
    assert list(chain(*expected)) == taken
    assert [len(some) for some in expected] == [8, 4]
    (pack.pack.folder / data_file_name(0)).unlink()
    monkeypatch.undo()
    pack.pack.read_ahead(np.arange(N))  # no file, no hint, no error


def test_views_on_the_device_are_those_of_the_plain_batch(tmp_path: Path) -> None:
    _, pack = sources(tmp_path)
    source = DeviceViews(pack, "cpu")
    assert (len(source), source.order(0, 1)) == (N, None)
    plan = [np.array([7, 2]), np.array([5])]
    actual = list(source.fetch(plan, ("weak", "plain"), seed=3, epoch=2))
    for (index, views), (_, (plain,)) in zip(actual, pack.fetch(plan, ("plain",)), strict=True):
        keys = view_keys(3, 2, pack.hashes[index], 2)
        assert torch.equal(views[0], make_view(VIEWS["weak"], plain, keys[:, 0]))  # type: ignore[arg-type]
        assert torch.equal(views[1], plain)
    assert DeviceViews(in_blocks(9), "cpu").order(1, 1) is not None
    for workers in (0, 2):
        again = DeviceViews(open_packed_images(pack.names, pack.pack.folder, VIEWS, workers=workers), "cpu")
        for one, two in zip(actual, again.fetch(plan, ("weak", "plain"), seed=3, epoch=2), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one.views, two.views, strict=True))


def test_bytes_decoded_on_the_device_or_else_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "a", kind="jpg")
    (folder / "03.jpg").unlink()
    shards = packed_up(folder, PackSettings(size=20))
    names = Names(f"{number:02d}" for number in range(N))
    pack = open_packed_images(names, shards.folder, VIEWS, max_bad=1.0)
    plan = [np.array([2, 3]), np.array([4, 5, 0]), np.array([3]), np.array([1])]
    wanted = list(open_packed_images(names, shards.folder, VIEWS, max_bad=1.0).fetch(plan, ("plain",)))
    calls: list[int] = []

    def decode(encoded: Any, device: Any) -> Any:
        """What a GPU would do, but for one batch, which it cannot."""
        calls.append(len(encoded))
        return None if len(calls) == 2 else decode_jpegs(encoded)

    monkeypatch.setattr(packed, "decode_jpegs", decode)
    source = DeviceViews(pack, "cpu", decode=True)
    actual = [source._decode_batch(pack, index, data) for index, data in pack.read(plan)]
    assert [batch.images.tolist() for batch in actual] == [[2], [4, 5, 0], [], [1]]
    for one, two in zip(wanted, actual, strict=True):
        assert len(one.views) == len(two.views)
        assert all(torch.equal(a, b) for a, b in zip(one.views, two.views, strict=True))
    assert calls == [1, 3, 1]
    assert [row[0] for row in pack.quarantine.rows] == ["03"]
    # Where the device is no GPU, the workers decode.
    again = list(source.fetch(plan, ("plain",)))
    assert [batch.images.tolist() for batch in again] == [[2], [4, 5, 0], [], [1]]
    broken_off = pack.read([np.array([0])] * 50)
    next(broken_off)
    broken_off.close()


def test_packs_travel_to_other_processes_and_close_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = packed_up(write_photos(tmp_path / "a"), shard_bytes=2500)
    monkeypatch.setattr("halflabel.data.pack.read._MAX_OPEN_FILES", 1)
    images = [shards.image(number) for number in range(N)]
    assert len(shards._files) == 1
    again = pickle.loads(pickle.dumps(shards))
    assert all(torch.equal(again.image(number), image) for number, image in enumerate(images))


def test_a_cache_of_features_goes_stale_with_the_pack(tmp_path: Path) -> None:
    from halflabel.models.feature_cache import _images_digest

    folder = write_photos(tmp_path / "a", 3)
    names = Names(["00", "01", "02"])

    def stamp() -> str:
        return _images_digest(open_packed_images(names, tmp_path / "p", VIEWS))

    pack_images(folder, tmp_path / "p", PNG)
    first = stamp()
    pack_images(folder, tmp_path / "p", PNG, force=True)
    assert stamp() == first
    Image.fromarray(pixels(9)).save(folder / "01.png")
    pack_images(folder, tmp_path / "p", PNG, force=True)
    assert stamp() != first
