"""Lists of classes with scores and sources, as packs store them: round trips, and faults."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_files import label_error

from halflabel.labels.formats import webdataset
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy


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


def pack(folder: Path, *records: dict[str, Any]) -> Path:
    """A tar with an empty image and the lists of each record."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "a.tar", "w") as tar:
        for number, record in enumerate(records):
            for name, data in ((f"{number}.jpg", b"x"), (f"{number}.json", json.dumps(record).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return folder


def test_faults(tmp_path: Path) -> None:
    fine: dict[str, Any] = {"labels": ["x"], "absent": [], "labels_score": [0.5]}
    for change, message, column in (
        ({"labels": [[]]}, "not a name", "labels[0]"),
        ({"absent": [None]}, "not a name", "absent[0]"),
        ({"absent": "x"}, "not a list", "absent"),
        ({"labels_score": [0.5, 0.5]}, "one for each of the 1", "labels_score"),
        ({"labels_score": ["high"]}, "not a score", "labels_score[0]"),
        ({"labels_score": [1e39]}, "not a score", "labels_score[0]"),
        ({"labels_score": [10**400]}, "not a score", "labels_score[0]"),
        ({"file_name": ""}, "name is empty", "file_name"),
        ({"file_name": "0.jpg"}, "occurs twice", None),
    ):
        error = label_error(webdataset.read, pack(tmp_path / "pack", fine, {**fine, **change}))
        assert message in error.message
        assert (Path(error.file).name, error.column) == ("a.tar: 1.json", column)
    path = pack(tmp_path / "pack", {**fine, "labels": [], "labels_score": []})
    assert "no image has a label" in label_error(webdataset.read, path).message


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
    records = zip(rows.images, webdataset.image_records(rows), strict=True)
    path = pack(tmp_path_factory.mktemp("pack"), *({"file_name": name, **record} for name, record in records))
    if not len(rows.holding()):
        assert "no image has a label" in label_error(webdataset.read, path).message
        return
    assert told(webdataset.read(path, Policy()).rows) == told(rows)


def test_the_number_minus_one_is_no_class(tmp_path: Path) -> None:
    path = pack(tmp_path / "pack", {"labels": [0, 3]}, {"labels": -1}, {"labels": [-1]}, {"labels": []})
    read = webdataset.read(path, Policy(unlisted="absent"))
    assert list(read.rows.classes) == ["0", "3"]
    assert read.rows.training.dense().tolist() == [[1, 1], [0, 0], [0, 0], [-1, -1]]
    assert any(note.startswith("2 images were labelled by nobody") for note in read.audit.notes)


def test_one_value_per_class_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "pack", {"labels": [0, 1, 1]}, {"labels": [1, 0, 0]})
    assert "one value per class" in label_error(webdataset.read, path, Policy(unlisted="absent")).message
