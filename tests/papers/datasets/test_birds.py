"""The labels of the bird photos fit the photos and their datasheet."""

import re
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from halflabel.papers.datasets import birds


def test_labels_are_complete_and_named_once():
    table = birds.read_labels()
    assert table.shape == (919, 14)
    assert table.known == 919 * 14
    assert list(table.images) == sorted(set(table.images))
    assert all(re.fullmatch(r"s\d{4}\.jpg", name) for name in table.images)


def test_datasheet_states_the_counts():
    table = birds.read_labels()
    text = (files(birds) / "datasheet.md").read_text(encoding="utf-8")
    stated = {name: int(count) for name, count in re.findall(r"^\| (\w+) \| (\d+) \|", text, re.MULTILINE)}
    present = table.dense() > 0
    assert stated == dict(zip(table.classes, present.sum(0).tolist(), strict=True))
    assert f"{present.sum(1).mean():.1f} classes on average; {int((~present.any(1)).sum())} show" in text


def test_scenes_exist_and_do_not_overlap():
    names = [name for scene in birds.SAME_SCENE for name in scene]
    assert len(names) == len(set(names))
    assert set(names) <= set(birds.read_labels().images)


def test_every_label_has_a_photo():
    folder = birds.photo_folder()
    if folder is None:
        pytest.skip("the photos are not installed")
    assert {path.name for path in folder.glob("*.jpg")} == set(birds.read_labels().images)
    with Image.open(folder / "s0001.jpg") as photo:
        assert np.asarray(photo).shape == (120, 120, 3)
