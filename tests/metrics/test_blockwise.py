"""Metrics block by block are those of the whole table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halflabel import metrics
from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.metrics import blockwise as blocks


def make(images: int = 60, classes: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.random((images, classes)).round(2)  # some are tied
    labels = rng.choice([-1, 0, 1], (images, classes), p=[0.4, 0.4, 0.2]).astype(np.int8)
    labels[:, 2] = np.minimum(labels[:, 2], 0)  # a class without a positive
    labels[5] = 0
    return scores, labels


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("held", ["table", "array"])
@pytest.mark.parametrize("per_class", [False, True])
def test_same_numbers_as_the_plain_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, held: str, per_class: bool
) -> None:
    monkeypatch.setattr(blocks, "_ROWS", 30)  # 4 images at a time
    monkeypatch.setattr(blocks, "_COLUMNS", 130)  # 2 classes at a time
    scores, labels = make()
    np.save(tmp_path / "scores.npy", scores.astype(kind))
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")
    thresholds = np.linspace(0.2, 0.8, 7) if per_class else 0.4
    found = metrics.blockwise(mapped, LabelTable.from_dense(labels) if held == "table" else labels, thresholds)
    whole = scores.astype(kind)
    np.testing.assert_array_equal(found.ap, metrics.average_precision(whole, labels))
    assert found.ap[2].isnan()
    for ours, theirs in zip(found.counts, metrics.decision_counts(whole, labels, thresholds), strict=True):
        assert ours.tolist() == theirs.tolist()
    expected = metrics.summary(whole, labels, thresholds)
    assert list(found.overall) == list(expected)
    assert found.overall == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert np.array_equal(mapped, whole)


class Recorded:
    """Scores that say how large a block was asked for."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores, self.shape, self.largest = scores, scores.shape, 0

    def __getitem__(self, place: tuple[slice, slice]) -> np.ndarray:
        block = self.scores[place]
        self.largest = max(self.largest, block.size)
        return block


def test_no_block_is_larger_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_ROWS", 30)
    scores, labels = make()
    asked = Recorded(scores)
    metrics.blockwise(asked, labels)
    assert asked.largest <= 30


def test_faults_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_ROWS", 30)
    scores, labels = make()
    with pytest.raises(UserError, match=r"scores have the shape \(60, 7\) and labels \(60, 6\)"):
        metrics.blockwise(scores, labels[:, :6])
    scores[41, 3] = np.nan
    with pytest.raises(UserError, match="the score of image 41 for class 3 is NaN"):
        metrics.blockwise(scores, labels)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_nothing_to_measure(shape: tuple[int, int]) -> None:
    found = metrics.blockwise(np.zeros(shape), np.zeros(shape, np.int8))
    assert len(found.ap) == shape[1]
    assert np.isnan([found.overall["mAP"], found.overall["exact_match"], found.overall["ECE"]]).all()


def test_integer_scores_and_private_maps(tmp_path: Path) -> None:
    scores, labels = make()
    np.save(tmp_path / "scores.npy", scores)
    private = np.load(tmp_path / "scores.npy", mmap_mode="c")
    private[:] = 1 - private  # must not be lost
    assert metrics.blockwise(private, labels).overall["mAP"] == metrics.mean_average_precision(1 - scores, labels)
    whole = (scores > 0.5).astype(np.int64)
    assert metrics.blockwise(whole, labels).overall["mAP"] == metrics.mean_average_precision(whole, labels)
