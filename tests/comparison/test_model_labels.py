"""Labels made by a model are never used for evaluation in compare, study and grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halflabel.comparison.bench import Bench
from halflabel.comparison.compare import compare
from halflabel.comparison.study import grow, study
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.system.reporter import Reporter


class Stop(Exception):
    """Raised instead of training."""


def mixed_rows(table: Table, is_model_made: NDArray[np.bool_]) -> Labels:
    image, column, value = table.entries()
    sources = ("person", "model:bce:runs/before")
    return Labels.build(table.images, table.classes, image, column, value, is_model_made.astype(int), None, sources)


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> list[Bench]:
    """The benches that are made; nothing is trained."""
    actual: list[Bench] = []

    def identity(self: Bench) -> None:
        actual.append(self)
        raise Stop

    monkeypatch.setattr(Bench, "identity", identity)
    return actual


@pytest.mark.parametrize("experiment", [compare, study, grow])
def test_labels_of_a_model_are_left_out(
    experiment: Any, digits: Any, config: Any, tmp_path: Path, benches: list[Bench]
) -> None:
    # One label of every second image: a study uses fully labelled images only.
    image, column, _ = digits.table.entries()
    is_model_made = (image % 2 == 0) & (column == 0)
    by_people = digits.table.keep(~is_model_made)
    lines: list[str] = []
    with pytest.raises(Stop):
        experiment(
            mixed_rows(digits.table, is_model_made),
            digits.images,
            out=tmp_path / "out",
            config=config,
            cache=tmp_path,
            reporter=Reporter(message=lines.append),
        )
    (bench,) = benches
    assert f"{is_model_made.sum()} of {digits.table.known} labels were made by a model: they are left out" in lines
    for table in (bench.data.table, bench.rest, bench.test):
        assert len(table)
        assert table == by_people.subset(by_people.images.index(table.images.array))


@pytest.mark.parametrize("experiment", [compare, study, grow])
def test_test_labels_of_a_model_are_left_out(
    experiment: Any, digits: Any, config: Any, tmp_path: Path, benches: list[Bench]
) -> None:
    rest, test = digits.table.subset(np.arange(20, 60)), digits.table.subset(np.arange(20))
    is_model_made = np.arange(test.known) % 3 == 0
    with pytest.raises(Stop):
        experiment(
            rest,
            digits.images[20:],
            out=tmp_path / "out",
            config=config,
            cache=tmp_path,
            test=mixed_rows(test, is_model_made),
            test_images=digits.images[:20],
        )
    (bench,) = benches
    assert bench.test == test.keep(~is_model_made)
