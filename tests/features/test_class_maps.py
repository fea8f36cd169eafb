"""Class-activation maps: their values, order and size, and the heat maps made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.features import class_maps
from halflabel.features.backbones import build_backbone
from halflabel.features.class_maps import compute_class_maps, heat_map, visible_box
from halflabel.features.heads import Head, Linear, Model
from halflabel.images.views import Plain
from halflabel.methods.base import seeded
from halflabel.methods.srcr import SaliencyHead
from halflabel.types import Output


def photos(n=3, high=48, wide=64):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, 3, high, wide), dtype=np.uint8))


def spots(places, high=6, wide=8, value=2.0):
    """(1, K, h, w): one map per place, positive only in that cell and, weaker, in a distant one."""
    maps = np.full((1, len(places), high, wide), -1.0, np.float32)
    for number, (row, column) in enumerate(places):
        maps[0, number, (row + 3) % high, (column + 4) % wide] = value / 2
        maps[0, number, row, column] = value
    return maps


PLACES = [(0, 0), (5, 7), (2, 3), (3, 0)]


def test_the_heat_map_peaks_where_the_class_map_does():
    hot = heat_map(spots(PLACES), (48, 64))
    assert hot.shape == (1, 4, 48, 64)
    for number, (row, column) in enumerate(PLACES):
        inside = np.zeros((48, 64), bool)
        inside[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = True
        field = hot[0, number]
        assert field[inside].max() == field.max()
        assert field[~inside].max() < field.max()


def test_heat_map_without_enlarging_equals_the_slow_loop():
    maps = np.random.default_rng(1).normal(size=(2, 3, 4, 5)).astype(np.float32)
    heat = heat_map(maps, (4, 5))
    for i in range(2):
        for c in range(3):
            positive = [[max(float(cell), 0.0) for cell in row] for row in maps[i, c]]
            largest = max(max(row) for row in positive)
            np.testing.assert_allclose(heat[i, c], np.array(positive) / largest, rtol=1e-6)
    assert (heat.max(axis=(2, 3)) == 1).all()
    assert (heat.min(axis=(2, 3)) == 0).all()


def test_heat_covers_the_visible_part_of_the_photo(monkeypatch):
    squashed, crop = Plain(32, "squash"), Plain(32, "crop", crop_pct=0.5)
    assert visible_box(squashed, 40, 80) == (0, 0, 1, 1)
    left, top, right, bottom = visible_box(crop, 40, 80)  # a square of 20 pixels in the middle
    assert (left * 80, top * 40, right * 80, bottom * 40) == (30, 10, 50, 30)
    monkeypatch.setattr(class_maps, "compute_class_maps", lambda *_: np.ones((1, 1, 3, 3)))
    inside = np.zeros((40, 80))
    inside[10:30, 30:50] = 1
    for view, expected in ((crop, inside), (squashed, 1)):
        (heat,) = class_maps.photo_heat_maps(None, view, photos(1, 40, 80)[0], [0], side=80)
        np.testing.assert_allclose(heat, expected, atol=1e-6)


def test_class_maps_are_those_of_the_head_in_the_given_order():
    backbone = build_backbone("tiny", size=48)
    for head in (seeded(0, lambda: SaliencyHead(64, 5)), seeded(0, lambda: Linear(64, 5, dropout=0.5))):
        model = Model(backbone, head).train()
        images = photos(18, 48, 48)  # more than are looked at together
        class_maps = compute_class_maps(model, images, [3, 0, 3])
        assert class_maps.shape == (18, 3, 6, 6)
        assert class_maps.dtype == np.float32
        with torch.no_grad():
            expected = head.eval().class_maps(backbone.eval()(images))[:, [3, 0, 3]]
        np.testing.assert_allclose(class_maps, expected.numpy(), rtol=1e-4, atol=1e-5)
        assert not model.training


def test_a_head_without_class_maps_is_refused():
    class Blind(Head):
        def forward(self, features):
            return Output(features, features)

    with pytest.raises(UserError, match="Blind has no class maps"):
        compute_class_maps(Model(build_backbone("tiny", size=32), Blind()), photos(1, 32, 32), [0])
