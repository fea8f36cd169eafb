"""Groups in experiments: copies of a file and images of one group are never divided between training and test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halflabel.comparison.sources import split_data
from halflabel.errors import UserError
from halflabel.labels.table import Table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty files, of which the last ten are copies of the first ten."""
    for number in range(20):
        (tmp_path / f"{number:02d}.png").write_bytes(bytes([number % 10]) * 50)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "sizes"),
    [(None, [2] * 10), ("^[01]([0-4])", [2] * 10), ("^0([0-3])", [2] * 10), ("^(1)[0-3]", [8] + [2] * 6)],
)
def test_copies_and_groups_stay_together(folder: Path, group: str | None, sizes: list[int]) -> None:
    labels = np.random.default_rng(0).choice([-1, 1], (20, 2))
    table = Table.from_dense(labels, [f"{number:02d}.png" for number in range(20)])
    data = split_data(table, folder, test_share=0.3, group=group)
    assert data.groups is not None
    assert data.test_groups is not None
    assert sorted(np.bincount(data.groups).tolist(), reverse=True) == sizes
    assert set(data.groups[data.inside]).isdisjoint(data.test_groups)
    assert len(data.outside)


def test_test_labels_of_images_elsewhere_ask_for_their_folder(folder: Path) -> None:
    table = Table.from_dense(np.ones((20, 2)), [f"{number:02d}.png" for number in range(20)])
    test = Table.from_dense(np.ones((2, 2)), ["a.png", "b.png"])
    with pytest.raises(UserError, match="test labels: none of the 2 images") as error:
        split_data(table, folder, test=test)
    assert "‹test_images" in error.value.fix
