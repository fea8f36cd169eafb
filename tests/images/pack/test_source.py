"""Packs as a source of batches: views, order, decoding and processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pack_examples import UNCHANGED, VIEWS, N, image_of, packed_up, pixels, write_photos
from PIL import Image

from halflabel.errors import UserError
from halflabel.images import device_views
from halflabel.images.decode import locate_images
from halflabel.images.device_views import DeviceViews, make_view
from halflabel.images.pack import source as packed
from halflabel.images.pack.read import (
    Pack,
    PackSettings,
    data_file_name,
    decode_jpegs,
)
from halflabel.images.pack.source import PackedImages, min_source_side, open_packed_images
from halflabel.images.pack.write import pack_images
from halflabel.images.sources import Images, Subset, preferred_order
from halflabel.images.views import Plain, Strong, View, Weak, view_keys
from halflabel.labels.names import Names


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
        expected, actual = (list(source.fetch(plan, views, seed=1, epoch=epoch)) for source in (folder, pack))
        assert len(expected) == len(actual) == 3
        for expected_batch, batch in zip(expected, actual, strict=True):
            assert expected_batch.images.tolist() == batch.images.tolist()
            assert all(torch.equal(a, b) for a, b in zip(expected_batch.views, batch.views, strict=True))


def test_a_part_of_a_source_can_be_sent_to_another_process(tmp_path: Path) -> None:
    index = np.array([2, 5, 6])
    for source in sources(tmp_path):
        part = pickle.loads(pickle.dumps(source.part(index)))
        ((numbers, wanted),) = source.fetch([index], ("weak", "strong"), seed=1, epoch=2)
        ((actual_numbers, actual),) = part.fetch([np.arange(3)], ("weak", "strong"), seed=1, epoch=2)
        assert (numbers.tolist(), actual_numbers.tolist()) == ([2, 5, 6], [0, 1, 2])
        assert all(torch.equal(a, b) for a, b in zip(wanted, actual, strict=True))


def test_an_image_that_is_not_in_the_pack_is_unreadable(tmp_path: Path) -> None:
    shards = packed_up(write_photos(tmp_path / "a", 3))
    source = open_packed_images(Names(["01", "gone", "02.jpg"]), shards.folder, VIEWS, max_bad=0.5)
    ((actual, _),) = source.fetch([np.arange(3)], ("plain",))
    assert actual.tolist() == [0, 2]
    assert source.quarantine.rows == [("gone", str(shards.folder / "gone"), "not in the pack")]
    assert source.paths[0] == str(shards.folder / "01")
    with pytest.raises(UserError, match=r"none of the 1 images.*'gone'"):
        open_packed_images(Names(["gone"]), shards.folder, VIEWS)


def test_views_that_a_pack_cannot_give_are_refused(tmp_path: Path) -> None:
    shards = packed_up(write_photos(tmp_path / "a", 3), PackSettings(size=16))
    with pytest.raises(UserError, match=r"16 px, but 32 px are needed.*size=16"):
        open_packed_images(Names(["01"]), shards.folder, {"plain": Plain(32)})


def test_large_jpegs_are_decoded_at_a_reduced_size(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 2, 160, 200)
    shards = packed_up(folder, PackSettings(size=160))
    assert [tuple(image_of(shards, 0, min_side=side).shape[1:]) for side in (0, 81, 80, 41, 40, 20, 3)] == [
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
    full, small = (Plain(40)(image_of(shards, 0, min_side=side)).float() for side in (0, 40))
    assert (full - small).abs().mean() < 4
    assert min_source_side([Plain(8), View(8)]) == 0


def test_without_torchvisions_decoder_pillow_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = packed_up(write_photos(tmp_path / "a", 3, 50, 70), PackSettings(size=40))
    quick = [image_of(shards, number) for number in range(3)]
    monkeypatch.setattr("halflabel.images.pack.read.decode_jpegs", lambda encoded: None)
    assert all(torch.equal(image_of(shards, number), image) for number, image in enumerate(quick))
    assert decode_jpegs([b"\xff\xd8\xff and no more"]) is None
    if not torch.cuda.is_available():
        assert decode_jpegs([shards.read(0)], "cuda") is None


def test_a_pack_of_one_window_has_no_preferred_order(tmp_path: Path) -> None:
    _, pack = sources(tmp_path)
    assert pack.order(0, 1) is None
    assert preferred_order(Subset(pack, np.arange(3)), 0, 1) is None
    assert preferred_order(sources(tmp_path / "x")[0], 0, 1) is None


def in_blocks(count: int) -> PackedImages:
    """A pack without files: the order needs no image."""
    shards = Pack(Path(), pa.array([]), {}, PackSettings())
    at = np.random.default_rng(0).permutation(count)
    return PackedImages(shards, at, Names.numbered(count), VIEWS)


def test_blocks_are_read_in_turn_and_mixed_within_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_BLOCK", 10)
    monkeypatch.setattr(packed, "_WINDOW", 3)
    pack = in_blocks(200)
    order = pack.order(3, 1)
    assert order is not None
    assert sorted(order.tolist()) == list(range(200))
    # Each run of 30 images is three whole blocks, in an order that mixes them.
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
    for seed_and_epoch in ((3, 2), (4, 1)):
        assert not np.array_equal(order, pack.order(*seed_and_epoch))
    # A part is read in the order of the whole.
    index = np.random.default_rng(1).permutation(200)[:50]
    part = preferred_order(Subset(pack, index), 3, 1)
    assert part is not None
    assert index[part].tolist() == [number for number in order.tolist() if number in set(index.tolist())]


def test_training_follows_the_order_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from halflabel.features.backbones import build_backbone
    from halflabel.features.heads import Linear, Model
    from halflabel.fitting.config import Config
    from halflabel.fitting.loop import fit
    from halflabel.labels.table import Table
    from halflabel.methods.base import recipe

    monkeypatch.setattr(packed, "_BLOCK", 3)
    monkeypatch.setattr(packed, "_WINDOW", 1)
    shards = packed_up(write_photos(tmp_path / "a"), UNCHANGED)
    pack = open_packed_images(Names(f"{number:02d}" for number in range(N)), shards.folder, VIEWS)
    orders: list[list[int]] = []
    fetch = PackedImages.fetch

    def recorded_fetch(self: PackedImages, plan: Any, views: Any, **more: Any) -> Iterator[Any]:
        orders.append(np.concatenate(plan).tolist())
        return fetch(self, plan, views, **more)

    monkeypatch.setattr(PackedImages, "fetch", recorded_fetch)
    table = Table.from_dense(np.ones((N, 2), np.int8))
    backbone = build_backbone("tiny")
    model = Model(backbone, Linear(backbone.channels, 2))
    fit(model, recipe("bce").make(), Subset(pack, np.arange(N)), table, Config(epochs=2, batch_size=5, device="cpu"))
    assert orders == [np.asarray(pack.order(0, epoch)).tolist() for epoch in (1, 2)]
    # Stored in another order than that of the names: neighbours are not alike.
    assert pack.positions.tolist() != sorted(pack.positions.tolist())


def test_the_next_images_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pack = sources(tmp_path, shard_bytes=2500)
    reports: list[list[int]] = []
    monkeypatch.setattr(
        "os.posix_fadvise", lambda file, first, length, advice: reports.append([first, length]), raising=False
    )
    pack.pack.read_ahead(np.array([5, 3, 4]))
    shard, first, length = (pack.pack.index[name][3:6].tolist() for name in ("shard", "offset", "length"))
    assert reports == [place for _, *place in sorted(zip(shard, first, length, strict=True))]
    monkeypatch.setattr(packed, "_AHEAD", 4)
    hinted: list[list[int]] = []
    monkeypatch.setattr(Pack, "read_ahead", lambda self, numbers: hinted.append(numbers.tolist()))
    plan = [np.array([first, first + 1]) for first in range(0, N, 2)]
    fetched = []
    for batch in pack.fetch(plan, ("plain",)):
        fetched += pack.positions[batch.images].tolist()
        assert set(fetched) <= set(chain(*hinted))
    # Each image is read ahead once, at least two batches before it is fetched.
    assert list(chain(*hinted)) == fetched
    assert [len(block) for block in hinted] == [8, 4]
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
    assert DeviceViews(in_blocks(5000), "cpu").order(1, 1) is not None
    for workers in (0, 2):
        with_workers = DeviceViews(open_packed_images(pack.names, pack.pack.folder, VIEWS, workers=workers), "cpu")
        for expected_batch, batch in zip(
            actual, with_workers.fetch(plan, ("weak", "plain"), seed=3, epoch=2), strict=True
        ):
            assert all(torch.equal(a, b) for a, b in zip(expected_batch.views, batch.views, strict=True))


def test_jpegs_are_decoded_on_the_device_or_by_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "a")
    (folder / "03.jpg").unlink()
    shards = packed_up(folder, PackSettings(size=20))
    names = Names(f"{number:02d}" for number in range(N))
    pack = open_packed_images(names, shards.folder, VIEWS, max_bad=1.0)
    plan = [np.array([2, 3]), np.array([4, 5, 0]), np.array([3]), np.array([1])]
    expected = list(open_packed_images(names, shards.folder, VIEWS, max_bad=1.0).fetch(plan, ("plain",)))
    calls: list[int] = []

    def decode(encoded: Any, device: Any) -> Any:
        """Decode as a GPU would, but fail for the second batch."""
        calls.append(len(encoded))
        return None if len(calls) == 2 else decode_jpegs(encoded)

    monkeypatch.setattr(device_views, "decode_jpegs", decode)
    source = DeviceViews(pack, "cpu", decode=True)
    actual = [source._decode_batch(pack, index, data) for index, data in pack.read(plan)]
    assert [batch.images.tolist() for batch in actual] == [[2], [4, 5, 0], [], [1]]
    for expected_batch, decoded in zip(expected, actual, strict=True):
        assert len(expected_batch.views) == len(decoded.views)
        assert all(torch.equal(a, b) for a, b in zip(expected_batch.views, decoded.views, strict=True))
    assert calls == [1, 3, 1]
    assert [row[0] for row in pack.quarantine.rows] == ["03"]
    # On the CPU the workers decode.
    by_workers = list(source.fetch(plan, ("plain",)))
    assert [batch.images.tolist() for batch in by_workers] == [[2], [4, 5, 0], [], [1]]
    unfinished = pack.read([np.array([0])] * 50)
    next(unfinished)
    unfinished.close()


def test_another_pack_changes_the_digest_of_its_images(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", 3)
    names = Names(["00", "01", "02"])

    def stamp() -> str:
        return open_packed_images(names, tmp_path / "p", VIEWS).digest()

    pack_images(folder, tmp_path / "p", UNCHANGED)
    first = stamp()
    pack_images(folder, tmp_path / "p", UNCHANGED, force=True)
    assert stamp() == first
    Image.fromarray(pixels(9)).save(folder / "01.jpg")
    pack_images(folder, tmp_path / "p", UNCHANGED, force=True)
    assert stamp() != first
