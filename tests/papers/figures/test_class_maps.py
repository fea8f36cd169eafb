"""The sheet of class maps: each model beside the photo, titles as written, a picture that can be opened."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.models.class_maps import overlay
from halflabel.papers.figures.class_maps import draw_class_maps

PHOTOS = [np.full((48, width, 3), 90, np.uint8) for width in (64, 32)]
COLD, HOT = ([np.full(photo.shape[:2], value, np.float32) for photo in PHOTOS] for value in (0.0, 1.0))


def test_models_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "halflabel.papers.figures.class_maps.save_figure", lambda figure, path, caption: drawn.append(figure)
    )
    draw_class_maps(PHOTOS, {"be$f$ore": COLD, "after": HOT}, ["bright", "dark"], tmp_path / "maps.png")
    (figure,) = drawn
    pictures = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]
    assert [picture.shape for picture in pictures] == 3 * [(48, 64, 3)] + 3 * [(48, 32, 3)]
    for row, photo in enumerate(PHOTOS):
        assert (pictures[3 * row] == photo).all()
        assert (pictures[3 * row + 1] == photo).all()
        assert (pictures[3 * row + 2] == overlay(photo, HOT[row])).all()
    assert [axes.get_title() for axes in figure.axes[:3]] == ["photo", r"be\$f\$ore", "after"]
    assert [figure.axes[3 * row].get_ylabel() for row in range(2)] == ["bright", "dark"]


def test_a_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "maps.png"
    draw_class_maps(PHOTOS, {"only": HOT}, ["bright $^$", "x"], path, "a caption")
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", head[16:24])) > 300
    with pytest.raises(UserError, match="nothing to compare"):
        draw_class_maps([], {"only": []}, [], path)
