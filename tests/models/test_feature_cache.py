"""The feature cache: computed once, computed again when stale, continued when interrupted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from halflabel.data.sources import Arrays, Features, Images
from halflabel.data.views import Plain, Strong, view_keys
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.models import feature_cache as cache
from halflabel.models.backbones import Backbone, build_backbone
from halflabel.models.feature_cache import cache_features
from halflabel.system.reporter import Reporter

N = 7


class Counting:
    """Counts the images that a backbone sees."""

    def __init__(self, backbone: Backbone, most: int = 10**9) -> None:
        self.images = 0
        self.most = most
        backbone.register_forward_pre_hook(self)

    def __call__(self, module: Any, args: tuple[Tensor, ...]) -> None:
        if self.images >= self.most:
            raise KeyboardInterrupt
        self.images += len(args[0])


def tiny() -> tuple[Backbone, Counting]:
    backbone = build_backbone("tiny", size=32)
    return backbone, Counting(backbone)


def pictures(seed: int = 0, n: int = N) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, 3, 40, 40), dtype=np.uint8))


def arrays(seed: int = 0, size: int = 32) -> Arrays:
    return Arrays(pictures(seed), Names.numbered(N), {"plain": Plain(size)})


def images(folder: Path, bad: tuple[int, ...] = (), max_bad: float = 1.0) -> Images:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(N)]
    for number, (path, picture) in enumerate(zip(paths, pictures(), strict=True)):
        if not path.exists():
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
            if number in bad:
                path.write_bytes(path.read_bytes()[:100])
    return Images(paths, Names.numbered(N), {"plain": Plain(32)}, max_bad=max_bad)


def values(found: Features) -> np.ndarray[Any, Any]:
    return np.array(found.values)


def by_hand(maps: bool = False) -> np.ndarray[Any, Any]:
    backbone = build_backbone("tiny", size=32)
    with torch.inference_mode():
        features = backbone(torch.stack([Plain(32)(picture) for picture in pictures()]))
    return (features if maps else features.mean((2, 3))).half().numpy()


@pytest.mark.parametrize("maps", [False, True], ids=["pooled", "maps"])
@pytest.mark.parametrize("kind", ["arrays", "images"])
def test_built_once_and_used_again(tmp_path: Path, kind: str, maps: bool) -> None:
    backbone, seen = tiny()
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
    assert seen.images == N
    assert reports == [(3, N), (6, N), (7, N)]
    again = get()
    assert seen.images == N
    assert np.array_equal(values(first), values(again))
    assert len(reports) == 3
    assert messages == []


def test_pooled_features_and_maps_and_other_images_live_side_by_side(tmp_path: Path) -> None:
    backbone, seen = tiny()
    fewer = Arrays(pictures()[:3], Names.numbered(3), {"plain": Plain(32)})
    for _ in range(2):
        assert values(cache_features(backbone, arrays(), tmp_path)).ndim == 2
        assert values(cache_features(backbone, arrays(), tmp_path, maps=True)).ndim == 4
        assert len(cache_features(backbone, fewer, tmp_path)) == 3
    assert seen.images == 2 * N + 3


def change_weights(backbone: Backbone) -> None:
    with torch.no_grad():
        first = next(backbone.parameters())  # not scaled: the norm that follows would undo it
        first.copy_(first.flip(0))


def test_other_weights_have_a_cache_of_their_own(tmp_path: Path) -> None:
    backbone, seen = tiny()
    messages: list[str] = []
    before = values(cache_features(backbone, arrays(), tmp_path))
    change_weights(backbone)
    after = values(cache_features(backbone, arrays(), tmp_path, reporter=Reporter(message=messages.append)))
    assert messages == ["the cached features do not fit (the weights changed): computing others beside them"]
    assert seen.images == 2 * N
    assert not np.array_equal(before, after)
    for expected in (before, after):
        change_weights(backbone)
        assert np.array_equal(
            values(cache_features(backbone, arrays(), tmp_path, reporter=Reporter(message=messages.append))), expected
        )
    assert seen.images == 2 * N
    assert len(messages) == 1


def test_other_views_and_pictures_have_one_too(tmp_path: Path) -> None:
    backbone, seen = tiny()
    messages: list[str] = []
    cache_features(backbone, arrays(), tmp_path)
    cropped = arrays()
    cropped.views = {"plain": Plain(32, "crop")}
    cache_features(backbone, cropped, tmp_path, reporter=Reporter(message=messages.append))
    other = arrays(seed=1)
    other.views = cropped.views
    cache_features(backbone, other, tmp_path, reporter=Reporter(message=messages.append))
    change_weights(backbone)
    cache_features(backbone, arrays(), tmp_path, reporter=Reporter(message=messages.append))
    assert [line.partition("(")[2].partition(")")[0] for line in messages] == [
        "the view changed",
        "the images changed",
        "the weights changed",  # since the most similar of them
    ]
    assert seen.images == 4 * N
    cache_features(backbone, cropped, tmp_path)
    assert seen.images == 5 * N
    assert len(list(tmp_path.iterdir())) == 5


def test_a_photo_replaced_with_equal_size_and_time_is_noticed(tmp_path: Path) -> None:
    backbone, _ = tiny()
    source = images(tmp_path / "images")
    first, second = (Path(path) for path in source.paths[:2])
    contents = [path.read_bytes().ljust(20_000, b"\0") for path in (first, second)]  # PNG ignores what follows its end
    first.write_bytes(contents[0])
    os.utime(first, ns=(1, 1))
    before = values(cache_features(backbone, source, tmp_path / "cache"))
    first.write_bytes(contents[1])
    os.utime(first, ns=(1, 1))
    messages: list[str] = []
    after = values(cache_features(backbone, source, tmp_path / "cache", reporter=Reporter(message=messages.append)))
    assert np.array_equal(after[0], before[1])
    assert "replaced" in messages[0]


def test_copied_images_with_their_times_need_no_new_cache(tmp_path: Path) -> None:
    backbone, counting = tiny()
    cache_features(backbone, images(tmp_path / "images"), tmp_path / "cache")
    shutil.copytree(tmp_path / "images", tmp_path / "copy")  # keeps the times, not the inodes
    counting.images = 0
    cache_features(backbone, images(tmp_path / "copy"), tmp_path / "cache")
    assert counting.images == 0


def test_computed_again_when_a_file_changes(tmp_path: Path) -> None:
    backbone, seen = tiny()
    messages: list[str] = []
    before = values(cache_features(backbone, images(tmp_path / "images"), tmp_path / "cache"))
    path = tmp_path / "images" / "3.png"
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(path)
    after = values(
        cache_features(
            backbone, images(tmp_path / "images"), tmp_path / "cache", reporter=Reporter(message=messages.append)
        )
    )
    assert "the images changed" in messages[0]
    assert np.flatnonzero((before != after).any(1)).tolist() == [3]
    os.utime(path, ns=(1, 1))
    cache_features(
        backbone, images(tmp_path / "images"), tmp_path / "cache", reporter=Reporter(message=messages.append)
    )
    assert len(messages) == 2
    assert seen.images == 3 * N


@pytest.mark.parametrize("batch_size", [2, 3, 5])
def test_a_build_that_broke_off_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    monkeypatch.setattr(cache, "_NOTE_IMAGES", 2)
    folder = tmp_path / "images"
    images(folder, bad=(1,))
    backbone = build_backbone("tiny", size=32)
    Counting(backbone, most=3)
    with pytest.raises(KeyboardInterrupt):
        cache_features(backbone, images(folder), tmp_path / "cache", batch_size=2)
    backbone, seen = tiny()
    messages: list[str] = []
    source = images(folder)
    features = cache_features(
        backbone, source, tmp_path / "cache", batch_size=batch_size, reporter=Reporter(message=messages.append)
    )
    # Of 0, 1 (bad), 2, 3 all is kept that fills whole batches of the new size.
    first = 4 // batch_size * batch_size
    assert seen.images == N - first - (1 if first == 0 else 0)
    good = np.arange(N) != 1
    np.testing.assert_allclose(values(features)[good], by_hand()[good], rtol=2e-3, atol=2e-3)
    assert features.bad.tolist() == [1]
    assert [row[0] for row in source.quarantine.rows] == ["1"]
    assert messages == []
    assert sorted(path.name for path in next((tmp_path / "cache").iterdir()).iterdir()) == ["cache.json", "values.npy"]


def test_a_broken_off_build_of_other_weights_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_NOTE_IMAGES", 1)
    backbone = build_backbone("tiny", size=32)
    Counting(backbone, most=4)
    with pytest.raises(KeyboardInterrupt):
        cache_features(backbone, arrays(), tmp_path, batch_size=2)
    backbone, seen = tiny()
    change_weights(backbone)
    cache_features(backbone, arrays(), tmp_path, batch_size=2)
    assert seen.images == N


def flip_a_bit(place: Path) -> None:
    raw = bytearray((place / "values.npy").read_bytes())
    raw[-1] ^= 4
    (place / "values.npy").write_bytes(bytes(raw))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (flip_a_bit, "do not match their checksum"),
        (lambda place: (place / "values.npy").write_bytes(b""), "do not match their checksum"),
        (lambda place: (place / "values.npy").unlink(), "do not match their checksum"),
        (lambda place: (place / "cache.json").write_text("{"), ""),
        (lambda place: (place / "cache.json").write_text("[]"), ""),
        (lambda place: (place / "cache.json").unlink(), ""),
    ],
    ids=["a bit", "empty", "no values", "half a note", "another note", "no note"],
)
def test_damage_is_found_and_made_good(tmp_path: Path, harm: Callable[[Path], None], says: str) -> None:
    backbone, seen = tiny()
    before = values(cache_features(backbone, arrays(), tmp_path))
    harm(next(tmp_path.iterdir()))
    messages: list[str] = []
    after = values(cache_features(backbone, arrays(), tmp_path, reporter=Reporter(message=messages.append)))
    assert np.array_equal(before, after)
    assert seen.images == 2 * N
    assert bool(messages) == bool(says)
    assert all(says in line for line in messages)


def test_unreadable_images_are_left_out_and_named_each_time(tmp_path: Path) -> None:
    backbone, seen = tiny()
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
    assert seen.images == N - 2
    note = json.loads((next((tmp_path / "cache").iterdir()) / "cache.json").read_text())
    assert note["bad"].keys() == {"2", "5"}


def test_a_source_that_knows_its_bad_images_already_still_has_them_left_out(tmp_path: Path) -> None:
    source = images(tmp_path / "images", bad=(4,))
    list(source.fetch([np.arange(N)], ("plain",)))
    features = cache_features(tiny()[0], source, tmp_path / "cache")
    assert features.bad.tolist() == [4]
    assert len(source.quarantine) == 1


def test_too_many_unreadable_images_are_an_error_at_building_and_at_reuse(tmp_path: Path) -> None:
    backbone, _ = tiny()
    folder = tmp_path / "images"
    with pytest.raises(UserError, match="cannot be read"):
        cache_features(backbone, images(folder, bad=(2, 5), max_bad=0.1), tmp_path / "cache")
    cache_features(backbone, images(folder), tmp_path / "cache")
    with pytest.raises(UserError, match="cannot be read"):
        cache_features(backbone, images(folder, max_bad=0.1), tmp_path / "cache")


def test_not_one_readable_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not one image could be read"):
        cache_features(tiny()[0], images(tmp_path / "images", bad=tuple(range(N))), tmp_path / "cache")


def with_strong(seed: int = 0, magnitude: int = 9) -> Arrays:
    source = arrays(seed)
    source.views = {"plain": Plain(32), "strong": Strong(32, magnitude=magnitude)}
    return source


def copies_of(found: Features) -> list[np.ndarray[Any, Any]]:
    return [np.array(copy) for copy in found.strong]


@pytest.mark.parametrize("maps", [False, True], ids=["pooled", "maps"])
def test_strong_views_are_kept_beside_the_plain_one(tmp_path: Path, maps: bool) -> None:
    backbone, seen = tiny()
    source = with_strong()
    features = cache_features(backbone, source, tmp_path, maps=maps, copies=2)
    np.testing.assert_allclose(values(features), by_hand(maps), rtol=2e-3, atol=2e-3)
    assert len(features.strong) == 2
    for number, copy in enumerate(features.strong):
        assert isinstance(copy, np.memmap)
        assert copy.dtype == np.float16
        keys = view_keys(cache._COPY_SEED, number, source.hashes, 1)[:, 0]
        views = [Strong(32)(picture, int(key)) for picture, key in zip(pictures(), keys, strict=True)]
        with torch.inference_mode():
            wanted = backbone(torch.stack(views))
        wanted = wanted if maps else wanted.mean((2, 3))
        np.testing.assert_allclose(copy, wanted.numpy(), rtol=2e-3, atol=2e-3)
    first, second = copies_of(features)
    assert (first != second).reshape(N, -1).any(1).all()
    before = seen.images
    again = cache_features(backbone, with_strong(), tmp_path, maps=maps, copies=2)
    assert seen.images == before
    assert all(np.array_equal(*pair) for pair in zip(copies_of(again), (first, second), strict=True))


def test_only_the_strong_views_that_are_missing_are_computed(tmp_path: Path) -> None:
    backbone, seen = tiny()
    messages: list[str] = []
    reports: list[tuple[int, int]] = []
    for copies, computed in ((0, N), (1, N), (3, 2 * N), (2, 0), (0, 0)):
        before = seen.images
        reports.clear()
        features = cache_features(
            backbone, with_strong(), tmp_path, copies=copies, batch_size=4,
            reporter=Reporter(lambda *at: reports.append(at), messages.append),
        )  # fmt: skip
        assert seen.images - before == computed
        assert len(features.strong) == copies
        assert reports == [(4 + N * n, computed) if half else (N * (n + 1), computed)
                        for n in range(computed // N) for half in (True, False)]  # fmt: skip
    assert messages == []


def test_a_plain_cache_of_a_source_without_strong_views_serves_one_with_them(tmp_path: Path) -> None:
    backbone, seen = tiny()
    cache_features(backbone, arrays(), tmp_path)
    place = next(tmp_path.iterdir())
    note = (place / "cache.json").read_bytes()
    cache_features(backbone, with_strong(), tmp_path, copies=1)
    assert seen.images == 2 * N
    assert (place / "cache.json").read_bytes() == note
    with pytest.raises(UserError, match="no strong view"):
        cache_features(backbone, arrays(), tmp_path, copies=1)


def test_asking_for_strong_views_that_could_have_been_cached_is_an_error(tmp_path: Path) -> None:
    features = cache_features(tiny()[0], with_strong(), tmp_path)
    with pytest.raises(UserError, match="copies=1"):
        list(features.fetch([np.arange(N)], ("weak", "strong")))
    features = cache_features(tiny()[0], arrays(), tmp_path)  # there never was a strong view
    with pytest.warns(UserWarning, match="no strong views"):
        ((_, (weak, strong)),) = features.fetch([np.arange(N)], ("weak", "strong"))
    assert weak is strong


def test_other_strong_views_are_kept_beside_them(tmp_path: Path) -> None:
    backbone, seen = tiny()
    messages: list[str] = []
    before = cache_features(backbone, with_strong(), tmp_path, copies=2)
    old = copies_of(before)
    after = cache_features(
        backbone, with_strong(magnitude=20), tmp_path, copies=2, reporter=Reporter(message=messages.append)
    )
    assert messages == ["the cached features do not fit (the strong view changed): computing others beside them"]
    assert seen.images == (3 + 2) * N
    assert np.array_equal(values(before), values(after))
    assert not any(np.array_equal(*pair) for pair in zip(old, copies_of(after), strict=True))
    change_weights(backbone)
    cache_features(backbone, with_strong(magnitude=20), tmp_path, copies=2, reporter=Reporter(message=messages.append))
    assert messages[1:] == ["the cached features do not fit (the weights changed): computing others beside them"]
    assert seen.images == (3 + 2 + 3) * N
    change_weights(backbone)
    again = cache_features(backbone, with_strong(), tmp_path, copies=2)
    assert all(np.array_equal(*pair) for pair in zip(old, copies_of(again), strict=True))
    assert seen.images == (3 + 2 + 3) * N


def test_a_damaged_strong_view_is_made_good_alone(tmp_path: Path) -> None:
    backbone, seen = tiny()
    old = copies_of(cache_features(backbone, with_strong(), tmp_path, copies=2))
    flip_a_bit(next(tmp_path.glob("*/strong-1-*")))
    messages: list[str] = []
    new = copies_of(
        cache_features(backbone, with_strong(), tmp_path, copies=2, reporter=Reporter(message=messages.append))
    )
    assert len(messages) == 1
    assert "checksum" in messages[0]
    assert seen.images == 4 * N
    assert all(np.array_equal(*pair) for pair in zip(old, new, strict=True))


def test_strong_views_that_broke_off_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_NOTE_IMAGES", 2)
    backbone = build_backbone("tiny", size=32)
    whole = copies_of(cache_features(backbone, with_strong(), tmp_path / "whole", copies=2))
    Counting(backbone, most=2 * N + 4)
    with pytest.raises(KeyboardInterrupt):
        cache_features(backbone, with_strong(), tmp_path / "broken", copies=2, batch_size=2)
    backbone, seen = tiny()
    reports: list[tuple[int, int]] = []
    features = cache_features(
        backbone,
        with_strong(),
        tmp_path / "broken",
        copies=2,
        batch_size=2,
        reporter=Reporter(lambda *at: reports.append(at)),
    )
    assert seen.images == N - 4
    assert reports == [(6, N), (7, N)]
    for got, wanted in zip(copies_of(features), whole, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-3)


def test_unreadable_images_have_no_strong_view_either(tmp_path: Path) -> None:
    source = images(tmp_path / "images", bad=(2,))
    source.views = {"plain": Plain(32), "strong": Strong(32)}
    features = cache_features(tiny()[0], source, tmp_path / "cache", copies=1)
    assert features.bad.tolist() == [2]
    assert len(source.quarantine) == 1
    ((index, (weak, strong)),) = features.fetch([np.arange(N)], ("weak", "strong"))
    assert index.tolist() == [0, 1, 3, 4, 5, 6]
    assert weak.shape == strong.shape == (N - 1, 64)
