"""Class-activation pictures: hot where the map is, in the order asked for, on the scale asked for."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from torch import nn

from halflabel.backbones import build
from halflabel.errors import UserError
from halflabel.heads import Head, Linear, Model
from halflabel.method import recipe, seeded
from halflabel.methods.srcr import Saliency
from halflabel.report.maps import activations, compare_activations, draw_activations, heat, overlay
from halflabel.types import Output


def photos(n=3, high=48, wide=64, value=None):
    if value is not None:
        return torch.full((n, 3, high, wide), value, dtype=torch.uint8)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, 3, high, wide), dtype=np.uint8))


def spots(places, high=6, wide=8, value=2.0):
    """(1, K, h, w): a map per place, negative but for that cell and, fainter, a far one."""
    maps = np.full((1, len(places), high, wide), -1.0, np.float32)
    for number, (row, column) in enumerate(places):
        maps[0, number, (row + 3) % high, (column + 4) % wide] = value / 2
        maps[0, number, row, column] = value
    return maps


class Bright(nn.Module):
    """A backbone of cells of 8 × 8 pixels: how bright each is, and how dark."""

    def forward(self, images):
        cells = nn.functional.avg_pool2d(images.float() / 255, 8)
        return torch.cat([cells.mean(1, keepdim=True), 1 - cells.mean(1, keepdim=True)], 1)


def bright_model(factor=1.0):
    """Class 0 is brightness, class 1 darkness, class 2 nothing."""
    head = Linear(2, 3)
    with torch.no_grad():
        head.linear.weight.copy_(factor * torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
        head.linear.bias.zero_()
    return Model(Bright(), head)


PLACES = [(0, 0), (5, 7), (2, 3), (3, 0)]


def test_the_hottest_place_is_where_the_map_is_largest():
    hot = heat(spots(PLACES), (48, 64))
    pictures = overlay(photos(1, value=0), spots(PLACES))
    assert hot.shape == (1, 4, 48, 64)
    assert pictures.shape == (1, 4, 48, 64, 3)
    assert pictures.dtype == np.uint8
    for number, (row, column) in enumerate(PLACES):
        inside = np.zeros((48, 64), bool)
        inside[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = True
        for field in (hot[0, number], pictures[0, number].astype(int).sum(-1)):
            assert field[inside].max() == field.max()
            assert field[~inside].max() < field.max()


def test_heat_is_the_slow_loop_where_nothing_is_enlarged():
    maps = np.random.default_rng(1).normal(size=(2, 3, 4, 5)).astype(np.float32)
    found = heat(maps, (4, 5))
    for i in range(2):
        for c in range(3):
            positive = [[max(float(cell), 0.0) for cell in row] for row in maps[i, c]]
            most = max(max(row) for row in positive)
            np.testing.assert_allclose(found[i, c], np.array(positive) / most, rtol=1e-6)
    assert (found.max(axis=(2, 3)) == 1).all()
    assert (found.min(axis=(2, 3)) == 0).all()


def test_scales():
    maps = np.concatenate([spots([(1, 1)], value=4.0), spots([(4, 6)], value=1.0)], axis=1)
    own = heat(maps, (6, 8))
    assert own.max(axis=(2, 3)).tolist() == [[1, 1]]
    assert heat(maps, (6, 8), 4.0).max(axis=(2, 3)).tolist() == [[1, 0.25]]
    black = photos(1, 6, 8, value=0)
    picture, shared = overlay(black, maps), overlay(black, maps, "shared")
    assert (picture[0, 0] == shared[0, 0]).all()
    assert picture[0, 1].max() > shared[0, 1].max() > 0
    with pytest.raises(UserError, match="picture or shared"):
        overlay(black, maps, "own")


def test_what_is_nowhere_positive_leaves_the_photo_as_it_was():
    given = photos(2, 16, 16)
    for scale in ("picture", "shared"):
        found = overlay(given, np.full((2, 1, 2, 2), -3.0), scale)
        assert (found[:, 0] == given.permute(0, 2, 3, 1).numpy()).all()
    touched = overlay(given, np.ones((2, 1, 2, 2)))
    assert not (touched[:, 0] == given.permute(0, 2, 3, 1).numpy()).all()


def test_activations_are_the_heads_class_maps_in_the_order_asked_for():
    backbone = build("tiny", size=48)
    for head in (seeded(0, lambda: Saliency(64, 5)), seeded(0, lambda: Linear(64, 5, dropout=0.5))):
        model = Model(backbone, head).train()
        given = photos(18, 48, 48)  # more than are looked at together
        found = activations(model, given, [3, 0, 3])
        assert found.shape == (18, 3, 6, 6)
        assert found.dtype == np.float32
        assert model.training
        with torch.no_grad():
            wanted = head.eval().class_maps(backbone.eval()(given))[:, [3, 0, 3]]
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)
        model.eval()
        activations(model, given[:1], [0])
        assert not model.training


def test_activations_of_cached_maps():
    head = seeded(0, lambda: Saliency(4, 3))
    maps = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    found = activations(Model(None, head), maps, [1])
    np.testing.assert_allclose(found[:, 0], head.class_maps(maps)[:, 1].detach().numpy(), rtol=1e-6)


def test_a_head_without_class_maps_is_refused():
    class Blind(Head):
        def forward(self, features):
            return Output(features, features)

    with pytest.raises(UserError, match="Blind has no class maps"):
        activations(Model(build("tiny", size=32), Blind()), photos(1, 32, 32), [0])


def lamp(row, column):
    """A dark photo with one bright cell."""
    image = torch.zeros(3, 48, 64, dtype=torch.uint8)
    image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 250
    return image


def pictures_of(figure, columns):
    shown = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]
    return [shown[first : first + columns] for first in range(0, len(shown), columns)]


@pytest.mark.parametrize("scale", ["picture", "shared"])
def test_heads_side_by_side(scale):
    given = torch.stack([lamp(0, 0), lamp(4, 6), lamp(2, 3)])
    models = {"before SR": bright_model(0.5), "after SR": bright_model(2.0)}
    figure = compare_activations(models, given, [0, 0, 1], ["bright", "dark", "none"], scale)
    rows = pictures_of(figure, 3)
    assert len(rows) == 3
    assert [axes.get_title() for axes in figure.axes[:3]] == ["photo", "before SR", "after SR"]
    assert [figure.axes[3 * row].get_ylabel() for row in range(3)] == ["bright", "bright", "dark"]
    maps = np.stack([activations(model, given, [0, 1, 2]) for model in models.values()])
    for row, (cls, photo) in enumerate(zip((0, 0, 1), given, strict=True)):
        assert (rows[row][0] == photo.permute(1, 2, 0).numpy()).all()
        for column in range(2):
            # The same picture as alone, where the scale is that of all six.
            alone = overlay(photo[None], maps[column, row : row + 1, cls : cls + 1])
            if scale == "shared":
                six = maps[:, [0, 1, 2], [0, 0, 1]].reshape(1, 6, 6, 8)
                alone = overlay(photo[None], six, "shared")[:, [3 * column + row]]
            assert (rows[row][1 + column] == alone[0, 0]).all()
    same = all((row[1] == row[2]).all() for row in rows)
    assert same == (scale == "picture")  # the same maps but for a factor of four


def test_heads_whose_maps_differ_in_size_can_be_compared():
    class Fine(nn.Module):
        def forward(self, images):
            return nn.functional.avg_pool2d(images.float() / 255, 4)

    models = {"coarse": bright_model(), "fine": Model(Fine(), seeded(0, lambda: Saliency(3, 3)))}
    figure = compare_activations(models, photos(2), [0, 1], ["x", "y", "z"], "shared")
    assert all(picture.shape == (48, 64, 3) for row in pictures_of(figure, 3) for picture in row)


def test_pictures_are_written(tmp_path):
    path = tmp_path / "maps.png"
    draw_activations({"only": bright_model()}, photos(2), [0, 2], ["bright", "dark", "none"], path)
    found = path.read_bytes()[:24]
    assert found[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", found[16:24])
    assert width > 300
    assert height > 300


def test_a_trained_method_can_be_drawn():
    head = seeded(0, lambda: recipe("srcr").make().head(64, 2))
    figure = compare_activations({"after": Model(build("tiny", size=32), head)}, photos(1, 32, 32), [1], ["a", "b"])
    assert len(figure.axes) == 2


def test_bad_requests_are_refused():
    with pytest.raises(UserError, match="one class for each photo"):
        compare_activations({"a": bright_model()}, photos(2), [0], ["x"])
    with pytest.raises(UserError, match="nothing to compare"):
        compare_activations({}, photos(2), [0, 1], ["x", "y"])
    with pytest.raises(UserError, match="picture or shared"):
        compare_activations({"a": bright_model()}, photos(1), [0], ["x"], "own")
