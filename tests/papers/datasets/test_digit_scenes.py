from __future__ import annotations

import digit_scenes
import numpy as np
import pytest
import torch
from digit_scenes import scenes
from sklearn.datasets import load_digits


def test_a_scene_does_not_depend_on_the_number_of_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = scenes(60)
    shorter = scenes(7)
    assert torch.equal(longer.images[:7], shorter.images)
    assert np.array_equal(longer.labels[:7], shorter.labels)
    monkeypatch.setattr(digit_scenes, "_BLOCK", 13)
    assert torch.equal(scenes(60).images, longer.images)


def test_the_splits_share_no_handwriting() -> None:
    data = load_digits()
    sides = {}
    for split in ("train", "test"):
        _, pools = digit_scenes._handwriting(split)
        assert all(len(pool) > 30 for pool in pools)
        assert all((data.target[pool] == digit).all() for digit, pool in enumerate(pools))
        sides[split] = np.concatenate(pools)
    assert sorted(np.concatenate(list(sides.values()))) == list(range(1797))
    pixels = {split: {data.images[number].tobytes() for number in numbers} for split, numbers in sides.items()}
    assert not pixels["train"] & pixels["test"]


def test_labels_drawn_are_the_digits_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one pool that is all ink and the others blank, a scene changes if and only if its label says so."""
    ink, pools = digit_scenes._handwriting("train")
    for digit in (0, 7):
        marked = np.zeros_like(ink)
        marked[pools[digit]] = 1
        monkeypatch.setattr(digit_scenes, "_handwriting", lambda split, marked=marked: (marked, pools))
        with_ink = scenes(80)
        monkeypatch.setattr(digit_scenes, "_handwriting", lambda split: (np.zeros_like(ink), pools))
        blank = scenes(80)
        changed = (with_ink.images != blank.images).flatten(1).sum(1).numpy()
        assert np.array_equal(changed > 0, with_ink.labels[:, digit] > 0)
        # The smallest digit is 14 pixels high and wide; its grain and ground may rarely give the very same byte.
        assert changed[changed > 0].min() > 14 * 14
