"""Strong views in the feature cache: beside the plain view, and computed again alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_cache_examples import (
    N,
    arrays,
    by_hand,
    flip_a_bit,
    images,
    pictures,
    tiny,
    values,
)

from halflabel.features import feature_blocks
from halflabel.features.feature_cache import cache_features
from halflabel.images.sources import Arrays, Features
from halflabel.images.views import Plain, Strong, view_keys
from halflabel.system.reporter import Reporter


def with_strong(seed: int = 0, magnitude: int = 9) -> Arrays:
    source = arrays(seed)
    source.views = {"plain": Plain(32), "strong": Strong(32, magnitude=magnitude)}
    return source


def copies_of(features: Features) -> list[np.ndarray[Any, Any]]:
    return [np.array(copy) for copy in features.strong]


@pytest.mark.parametrize("maps", [False, True], ids=["pooled", "maps"])
def test_strong_views_are_cached_beside_the_plain_view(tmp_path: Path, maps: bool) -> None:
    backbone, counter = tiny()
    source = with_strong()
    features = cache_features(backbone, source, tmp_path, maps=maps, copies=2)
    np.testing.assert_allclose(values(features), by_hand(maps), rtol=2e-3, atol=2e-3)
    assert len(features.strong) == 2
    for number, copy in enumerate(features.strong):
        assert isinstance(copy, np.memmap)
        assert copy.dtype == np.float16
        keys = view_keys(feature_blocks._COPY_SEED, number, source.hashes, 1)[:, 0]
        views = [Strong(32)(picture, int(key)) for picture, key in zip(pictures(), keys, strict=True)]
        with torch.inference_mode():
            expected = backbone(torch.stack(views))
        expected = expected if maps else expected.mean((2, 3))
        np.testing.assert_allclose(copy, expected.numpy(), rtol=2e-3, atol=2e-3)
    first, second = copies_of(features)
    assert (first != second).reshape(N, -1).any(1).all()
    before = counter.images
    reused = cache_features(backbone, with_strong(), tmp_path, maps=maps, copies=2)
    assert counter.images == before
    assert all(np.array_equal(*pair) for pair in zip(copies_of(reused), (first, second), strict=True))


def test_only_the_strong_views_that_are_missing_are_computed(tmp_path: Path) -> None:
    backbone, counter = tiny()
    messages: list[str] = []
    reports: list[tuple[int, int]] = []
    for copies, computed in ((0, N), (1, N), (3, 2 * N), (2, 0), (0, 0)):
        before = counter.images
        reports.clear()
        features = cache_features(
            backbone, with_strong(), tmp_path, copies=copies, batch_size=4,
            reporter=Reporter(lambda *at: reports.append(at), messages.append),
        )  # fmt: skip
        assert counter.images - before == computed
        assert len(features.strong) == copies
        assert reports == [(4 + N * n, computed) if half else (N * (n + 1), computed)
                        for n in range(computed // N) for half in (True, False)]  # fmt: skip
    assert messages == []


def test_only_the_damaged_strong_view_is_computed_again(tmp_path: Path) -> None:
    backbone, counter = tiny()
    old = copies_of(cache_features(backbone, with_strong(), tmp_path, copies=2))
    flip_a_bit(next(tmp_path.glob("*/strong-1-*")))
    messages: list[str] = []
    new = copies_of(
        cache_features(backbone, with_strong(), tmp_path, copies=2, reporter=Reporter(message=messages.append))
    )
    assert len(messages) == 1
    assert "checksum" in messages[0]
    assert counter.images == 4 * N
    assert all(np.array_equal(*pair) for pair in zip(old, new, strict=True))


def test_unreadable_images_have_no_strong_view(tmp_path: Path) -> None:
    source = images(tmp_path / "images", bad=(2,))
    source.views = {"plain": Plain(32), "strong": Strong(32)}
    features = cache_features(tiny()[0], source, tmp_path / "cache", copies=1)
    assert features.bad.tolist() == [2]
    assert len(source.quarantine) == 1
    ((index, (weak, strong)),) = features.fetch([np.arange(N)], ("weak", "strong"))
    assert index.tolist() == [0, 1, 3, 4, 5, 6]
    assert weak.shape == strong.shape == (N - 1, 64)
