from __future__ import annotations

from pathlib import Path

import digit_scenes
import numpy as np
import pytest
import torch
from digit_scenes import scenes, write_folder
from sklearn.datasets import load_digits

from halflabel.errors import UserError
from halflabel.images.decode import locate_images, read_image
from halflabel.labels.formats.wide import read as read_wide
from halflabel.labels.policy import Policy


def test_shapes_and_values() -> None:
    samples = scenes(40)
    assert samples.images.shape == (40, 3, 64, 64)
    assert samples.images.dtype == torch.uint8
    assert samples.labels.shape == (40, 10)
    assert samples.labels.dtype == np.int8
    assert set(np.unique(samples.labels)) == {-1, 1}
    assert samples.classes == list("0123456789")
    assert samples.names[:2] == ["train-000000", "train-000001"]
    assert len(set(samples.names)) == 40
    assert scenes(2, size=96).images.shape == (2, 3, 96, 96)


def test_a_scene_does_not_depend_on_the_number_of_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = scenes(60)
    shorter = scenes(7)
    assert torch.equal(longer.images[:7], shorter.images)
    assert np.array_equal(longer.labels[:7], shorter.labels)
    monkeypatch.setattr(digit_scenes, "_BLOCK", 13)
    assert torch.equal(scenes(60).images, longer.images)


def test_seed_and_split_change_the_scenes() -> None:
    kinds = [scenes(20), scenes(20, seed=1), scenes(20, split="test")]
    assert len({kind.images.numpy().tobytes() for kind in kinds}) == 3
    assert len({kind.labels.tobytes() for kind in kinds}) == 3


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


def test_the_labels_have_structure() -> None:
    u = digit_scenes.uniform(0, np.arange(20_000)[:, None], np.arange(12)[None, :])
    ranks, count = digit_scenes._choose(u)
    present = ranks < count[:, None]
    frequency = present.mean(axis=0)
    assert 0.07 < frequency.min() < 0.10
    assert 0.33 < frequency.max() < 0.38
    assert present.sum(axis=1).min() == 1
    assert present.sum(axis=1).max() == 5
    assert 2.4 < present.sum(axis=1).mean() < 2.9
    together = present.T.astype(float) @ present / present.sum(axis=0)[:, None]
    off_diagonal = together[~np.eye(10, dtype=bool)]
    assert off_diagonal.min() < 0.05
    assert off_diagonal.max() > 0.55
    lift = together / frequency
    assert lift[2, 0] > 1.5
    assert lift[9, 7] > 2
    assert lift[2, 6] < 0.5


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


def test_digits_overlap_little() -> None:
    u = digit_scenes.uniform(3, np.arange(500)[:, None, None, None], *np.ix_(range(5), range(16), range(2)))
    count = 1 + np.arange(500) % 5
    sides = np.broadcast_to(digit_scenes._LARGEST[count - 1][:, None], (500, 5))
    tops, lefts = digit_scenes._place(u, sides, count, 64)
    assert tops.min() >= 0
    assert lefts.min() >= 0
    assert (tops + sides).max() <= 64
    assert (lefts + sides).max() <= 64
    hidden = []
    for scene in range(500):
        cover = np.zeros((64, 64), int)
        for slot in range(count[scene]):
            side = sides[scene, slot]
            cover[tops[scene, slot] :, lefts[scene, slot] :][:side, :side] += 1
        hidden.append((cover > 1).sum() / (cover > 0).sum())
    # These are the largest digits there can be.
    assert np.mean(hidden) < 0.1


def test_digits_are_brighter_or_darker_than_the_ground() -> None:
    u = np.random.default_rng(0).random((200, 5, 8))
    ground = np.full((200, 3, 64, 64), 0.5, np.float32)
    middle = np.full((200, 5), 32)
    step = digit_scenes._colours(ground, middle, middle, u).mean(axis=2) - 0.5
    assert 0.3 < (step > 0).mean() < 0.7
    assert np.abs(step).mean() > 0.25


def test_write_folder_is_the_same_data(tmp_path: Path) -> None:
    table = write_folder(tmp_path, 12, split="test", size=48)
    samples = scenes(12, split="test", size=48)
    assert table == tmp_path / "test.csv"
    lines = table.read_text().splitlines()
    assert lines[0] == "image,0,1,2,3,4,5,6,7,8,9"
    cells = [line.split(",") for line in lines[1:]]
    assert np.array_equal(np.array([row[1:] for row in cells]) == "1", samples.labels > 0)
    assert {value for row in cells for value in row[1:]} == {"0", "1"}
    paths = locate_images([row[0] for row in cells], tmp_path / "images")
    assert torch.equal(torch.stack([read_image(path) for path in paths if path is not None]), samples.images)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "test.csv"]
    assert read_wide(table, Policy()) is not None


def test_bad_arguments_of_scenes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="0 scenes"):
        scenes(0)
    with pytest.raises(UserError, match="16 pixels"):
        scenes(1, size=16)
    with pytest.raises(UserError, match="valid"):
        scenes(1, split="valid")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create"):
        write_folder(tmp_path / "file", 1)
