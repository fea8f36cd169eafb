"""The feature cache: computed once, computed again when stale, continued when interrupted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from feature_cache_examples import (
    Counting,
    N,
    arrays,
    by_hand,
    change_weights,
    flip_a_bit,
    images,
    tiny,
    values,
)
from PIL import Image

from halflabel.errors import UserError
from halflabel.features import vector_store
from halflabel.features.backbones import build_backbone
from halflabel.features.feature_cache import cache_features
from halflabel.images.file_identity import content_digest
from halflabel.images.pack.read import PackSettings, open_pack
from halflabel.images.pack.source import open_packed_images
from halflabel.images.pack.write import pack_images
from halflabel.images.sources import Features
from halflabel.images.views import Plain
from halflabel.system.reporter import Reporter


@pytest.mark.parametrize("maps", [False, True], ids=["pooled", "maps"])
@pytest.mark.parametrize("kind", ["arrays", "images"])
def test_built_once_and_used_again(tmp_path: Path, kind: str, maps: bool) -> None:
    backbone, counter = tiny()
    reports: list[tuple[int, int]] = []
    messages: list[str] = []

    def get() -> Features:
        source = arrays() if kind == "arrays" else images(tmp_path / "images")
        return cache_features(
            backbone, source, tmp_path / "cache", maps=maps, batch_size=3,
            reporter=Reporter(lambda *at: reports.append(at), messages.append),
        )  # fmt: skip

    first = get()
    assert values(first).dtype == np.float16
    np.testing.assert_allclose(values(first), by_hand(maps), rtol=2e-3, atol=2e-3)
    assert isinstance(first.values, np.memmap)
    assert counter.images == N
    assert reports == [(3, N), (6, N), (7, N)]
    reused = get()
    assert counter.images == N
    assert np.array_equal(values(first), values(reused))
    assert len(reports) == 3
    assert messages == []


def test_other_views_and_images_have_separate_caches(tmp_path: Path) -> None:
    backbone, counter = tiny()
    cache_features(backbone, arrays(), tmp_path)
    cropped, other_images = arrays(), arrays(seed=1)
    cropped.views = other_images.views = {"plain": Plain(32, "crop")}
    cache_features(backbone, cropped, tmp_path)
    cache_features(backbone, other_images, tmp_path)
    change_weights(backbone)
    cache_features(backbone, arrays(), tmp_path)
    assert counter.images == 4 * N
    cache_features(backbone, cropped, tmp_path)
    assert counter.images == 5 * N
    assert len(list(tmp_path.iterdir())) == 5


def test_copied_images_with_their_times_need_no_new_cache(tmp_path: Path) -> None:
    backbone, counting = tiny()
    cache_features(backbone, images(tmp_path / "images"), tmp_path / "cache")
    shutil.copytree(tmp_path / "images", tmp_path / "copy")  # keeps the times, not the inodes
    counting.images = 0
    cache_features(backbone, images(tmp_path / "copy"), tmp_path / "cache")
    assert counting.images == 0


def test_computed_again_when_a_file_changes(tmp_path: Path) -> None:
    backbone, counter = tiny()
    before = values(cache_features(backbone, images(tmp_path / "images"), tmp_path / "cache"))
    path = tmp_path / "images" / "3.png"
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(path)
    after = values(cache_features(backbone, images(tmp_path / "images"), tmp_path / "cache"))
    assert np.flatnonzero((before != after).any(1)).tolist() == [3]
    os.utime(path, ns=(1, 1))
    cache_features(backbone, images(tmp_path / "images"), tmp_path / "cache")
    assert counter.images == 3 * N


@pytest.mark.parametrize("batch_size", [2, 3, 5])
def test_an_interrupted_build_continues(tmp_path: Path, batch_size: int) -> None:
    folder = tmp_path / "images"
    images(folder, bad=(1,))
    backbone = build_backbone("tiny", size=32)
    Counting(backbone, limit=3)
    with pytest.raises(KeyboardInterrupt):
        cache_features(backbone, images(folder), tmp_path / "cache", batch_size=2)
    backbone, counter = tiny()
    messages: list[str] = []
    source = images(folder)
    features = cache_features(
        backbone, source, tmp_path / "cache", batch_size=batch_size, reporter=Reporter(message=messages.append)
    )
    # Images 0, 1 (bad), 2 and 3 are done; those that fill whole batches of the new size are kept.
    first = 4 // batch_size * batch_size
    assert counter.images == N - first - (1 if first == 0 else 0)
    good = np.arange(N) != 1
    np.testing.assert_allclose(values(features)[good], by_hand()[good], rtol=2e-3, atol=2e-3)
    assert features.bad.tolist() == [1]
    assert [row[0] for row in source.quarantine.rows] == ["1"]
    assert messages == []
    (place,) = (tmp_path / "cache").iterdir()
    assert sorted(path.name for path in place.iterdir()) == ["about.json", "blocks.jsonl", "digests.npy", "values.npy"]
    files = [*map(Path, source.paths)]
    assert source.digests.tolist() == [
        content_digest(path.read_bytes()) if n != 1 else 0 for n, path in enumerate(files)
    ]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (flip_a_bit, "do not match their checksum"),
        (lambda place: (place / "values.npy").write_bytes(b""), "do not match their checksum"),
        (lambda place: (place / "values.npy").unlink(), "do not match their checksum"),
        (lambda place: (place / "about.json").write_text("{"), ""),
        (lambda place: (place / "about.json").write_text("[]"), ""),
        (lambda place: (place / "about.json").unlink(), ""),
        (lambda place: (place / "blocks.jsonl").write_text('{"first": 0, "cou'), ""),
        (lambda place: (place / "blocks.jsonl").unlink(), ""),
    ],
    ids=["a bit", "empty", "no values", "half a note", "another note", "no note", "half a line", "no lines"],
)
def test_a_damaged_cache_is_computed_again(tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    backbone, counter = tiny()
    before = values(cache_features(backbone, arrays(), tmp_path))
    harm(next(tmp_path.iterdir()))
    messages: list[str] = []
    after = values(cache_features(backbone, arrays(), tmp_path, reporter=Reporter(message=messages.append)))
    assert np.array_equal(before, after)
    assert counter.images == 2 * N
    assert bool(messages) == bool(message)
    assert all(message in line for line in messages)


def test_unreadable_images_are_left_out_and_reported_each_time(tmp_path: Path) -> None:
    backbone, counter = tiny()
    folder = tmp_path / "images"
    for _ in range(2):
        source = images(folder, bad=(2, 5))
        features = cache_features(backbone, source, tmp_path / "cache", batch_size=1)  # whole batches without one image
        assert features.bad.tolist() == [2, 5]
        assert [(image, reason) for image, _, reason in source.quarantine.rows] == [
            ("2", "truncated"),
            ("5", "truncated"),
        ]
        assert [batch.images.tolist() for batch in features.fetch([np.arange(N)], ("plain",))] == [[0, 1, 3, 4, 6]]
        # The same source, asked again for its images, does not count them twice.
        list(source.fetch([np.arange(N)], ("plain",)))
        assert len(source.quarantine) == 2
    assert counter.images == N - 2
    (store,) = vector_store.stores_in(tmp_path / "cache")
    assert store.unreadable().keys() == {2, 5}


def test_images_of_a_repaired_pack_or_of_an_intact_copy_are_read_again(tmp_path: Path) -> None:
    source = images(tmp_path / "images")
    pack_images(tmp_path / "images", tmp_path / "intact", PackSettings(size=40))
    shutil.copytree(tmp_path / "intact", tmp_path / "damaged")
    shard = tmp_path / "damaged" / "00000.tar"
    pack = open_pack(tmp_path / "damaged")
    harmed = bytearray(shard.read_bytes())
    harmed[int(pack.index["offset"][3]) + 200] ^= 255
    shard.write_bytes(harmed)
    lost = source.names.index([pack.name(3).removesuffix(".png")]).tolist()

    def bad_images(folder: str, cache: str = "cache") -> list[int]:
        packed = open_packed_images(source.names, tmp_path / folder, source.views, max_bad=1.0)
        cached = cache_features(backbone, packed, tmp_path / cache, batch_size=2)
        assert [path for _, path, _ in packed.bad.values()] == [f"{packed.paths[number]}.png" for number in cached.bad]
        return cached.bad.tolist()

    backbone, counter = tiny()
    assert bad_images("damaged") == bad_images("damaged") == lost
    assert counter.images == N - 1
    assert bad_images("intact") == []  # the same images, so the same cache
    assert bad_images("damaged") == []
    assert counter.images <= N - 1 + 2  # only the batch of the image
    assert bad_images("intact", "other cache") == []
    (first,), (second,) = ((tmp_path / cache).glob("*/values.npy") for cache in ("cache", "other cache"))
    assert first.read_bytes() == second.read_bytes()


def test_too_many_unreadable_images_are_refused_when_building_and_reusing(tmp_path: Path) -> None:
    backbone, _ = tiny()
    folder = tmp_path / "images"
    with pytest.raises(UserError, match="cannot be read"):
        cache_features(backbone, images(folder, bad=(2, 5), max_bad=0.1), tmp_path / "cache")
    cache_features(backbone, images(folder), tmp_path / "cache")
    with pytest.raises(UserError, match="cannot be read"):
        cache_features(backbone, images(folder, max_bad=0.1), tmp_path / "cache")


def test_a_source_without_readable_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not one image could be read"):
        cache_features(tiny()[0], images(tmp_path / "images", bad=tuple(range(N))), tmp_path / "cache")
