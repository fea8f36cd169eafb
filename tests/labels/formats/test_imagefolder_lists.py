"""Hugging Face ImageFolder with lists: golden file, round trips of scores and sources, and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_files import GOLDEN_FILES, label_error

from halflabel.labels import formats
from halflabel.labels.formats import imagefolder_lists
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

GOLDEN = GOLDEN_FILES / "imagefolder_lists"


def golden_rows() -> Labels:
    image, column = np.array([0, 0, 0, 0, 2, 2]), np.array([0, 0, 1, 2, 1, 2])
    value, source = np.array([-1, 1, -1, -1, 1, 1]), np.array([2, 2, 1, 2, 0, 0])
    score = np.array([np.nan, 0.7, np.nan, 0.125, np.nan, np.nan])
    names = Names(["0001.png", "sub/0002.png", "a, b.png"]), Names(["cat", "NA", "dog"])
    return Labels.build(*names, image, column, value, source, score, ["", "person", "model"])


def told(rows: Labels) -> set[tuple[str, str, int, str, float | None]]:
    last = rows.holding()
    return {
        (
            rows.images[rows.image[k]],
            rows.classes[rows.column[k]],
            int(rows.value[k]),
            rows.sources[rows.source[k]],
            None if np.isnan(rows.score[k]) else float(rows.score[k]),
        )
        for k in last
    }


def lines(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "metadata.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write(rows: Labels, folder: Path) -> Path:
    """The lists as a pack stores them, as metadata.jsonl."""
    records = zip(rows.images, imagefolder_lists.image_records(rows), strict=True)
    return lines(folder, *({"file_name": name, **record} for name, record in records))


def test_golden_file_is_written_and_read(tmp_path: Path) -> None:
    rows = golden_rows()
    file = write(rows, tmp_path)
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert written == [json.loads(line) for line in (GOLDEN / "metadata.jsonl").read_text().splitlines()]
    for path in (file, tmp_path):
        result = formats.read(path)
        assert result.audit.format == "imagefolder-lists"
        assert told(result.rows) == told(rows)
        assert list(result.rows.images) == list(rows.images)
        assert [tuple(line) for line in result.audit.value_counts] == [
            ("in labels", "present", 3),
            ("in absent", "absent", 2),
            ("not listed", "unknown", 4),
        ]


def test_plain_lists_are_those_of_imagefolder(tmp_path: Path) -> None:
    table = Table.from_dense([[1, -1], [0, 0], [0, 1]], ["a", "b", "c"], ["x", "y"])
    file = write(Labels.from_table(table), tmp_path)
    assert set(json.loads(file.read_text().splitlines()[0])) == {"file_name", "labels", "absent"}
    result = formats.read(tmp_path)
    assert result.audit.format == "imagefolder"
    assert result.table() == table


def test_faults(tmp_path: Path) -> None:
    fine: dict[str, Any] = {"file_name": "a", "labels": ["x"], "absent": [], "labels_score": [0.5]}
    for change, message, column in (
        ({"labels": "x"}, "not a list of class names", "labels"),
        ({"absent": [None]}, "not a list of class names", "absent"),
        ({"labels_score": [0.5, 0.5]}, "one score for each of the 1", "labels_score"),
        ({"labels_score": ["high"]}, "not a number", "labels_score"),
        ({"labels_score": [1e39]}, "not a score", "labels_score"),
        ({"labels_score": [10**400]}, "not a score", "labels_score"),
        ({"file_name": ""}, "no name", "file_name"),
        ({"file_name": "a"}, "occurs twice", "file_name"),
    ):
        error = label_error(imagefolder_lists.read, lines(tmp_path, fine, {**fine, "file_name": "b", **change}))
        assert message in error.message
        assert (error.line, error.column) == (2, column)
    assert (
        "'absent'"
        in label_error(
            imagefolder_lists.read, lines(tmp_path, {"file_name": "a", "labels": ["x"], "labels_score": [1]})
        ).message
    )
    assert (
        "no classes"
        in label_error(imagefolder_lists.read, lines(tmp_path, {**fine, "labels": [], "labels_score": []})).message
    )
    assert "‹format=imagefolder›" in label_error(imagefolder_lists.read, tmp_path / "metadata.csv").fix


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip_of_any_rows(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
    images, classes = (data.draw(st.lists(names, min_size=1, max_size=4, unique=True)) for _ in range(2))
    count = data.draw(st.integers(1, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    score = np.where(rng.random(count) < 0.5, np.nan, rng.random(count))
    column = rng.integers(0, len(classes), count)
    value = rng.choice([-1, 0, 1], count)
    source = rng.integers(0, 2, count)
    rows = Labels.build(
        Names(images), Names(classes), rng.integers(0, len(images), count), column, value, source, score, ["", "p"]
    )
    path = write(rows, tmp_path_factory.mktemp("lists"))
    if not len(rows.holding()) or not rows.value[rows.holding()].any():
        assert "no classes" in label_error(imagefolder_lists.read, path).message
        return
    assert told(imagefolder_lists.read(path, Policy()).rows) == told(rows)
